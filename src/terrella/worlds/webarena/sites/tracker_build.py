# mypy: ignore-errors
"""Fills the tracker: a Trac environment with tickets, wiki pages, milestones and a session. Prints the session."""

import json
import os
import time

from trac.admin.console import TracAdmin
from trac.env import Environment
from trac.ticket.model import Milestone, Ticket
from trac.wiki.model import WikiPage

HOME = os.path.join(os.environ["SITE_HOME"], "trac")  # noqa: PTH118
TICKETS = [("Login button is invisible on small screens", "defect", "major", "ui", "ida"), ("Add dark theme", "enhancement", "minor", "ui", "bo"),
           ("Crash when saving an empty note", "defect", "critical", "storage", "ida"), ("Write installation guide", "task", "major", "docs", "bo"),
           ("Search ignores accents", "defect", "minor", "search", "kai"), ("Export to CSV", "enhancement", "major", "storage", "kai"),
           ("Typo on the front page", "defect", "trivial", "docs", "ida"), ("Slow start on old machines", "defect", "major", "storage", "bo")]  # fmt: skip
PAGES = {"InstallGuide": "= Install =\nRun `make install`. The default port is 8844.", "ReleaseNotes": "= Release notes =\nVersion 2.1 was called Heron.",
         "TeamRoster": "= Team =\n * Ida: interface\n * Bo: documents\n * Kai: search"}  # fmt: skip


def fill():
    """Everything."""
    admin = TracAdmin()
    admin.env_set(HOME)
    admin.onecmd("initenv MiniTracker sqlite:db/trac.db")
    for line in ("component remove component1", "component remove component2", "component add ui ida", "component add storage kai",
                 "component add docs bo", "component add search kai", "milestone remove milestone1", "milestone remove milestone2",
                 "milestone remove milestone3", "milestone remove milestone4", "permission add lead TRAC_ADMIN",
                 "config set trac check_auth_ip disabled"):  # fmt: skip
        admin.onecmd(line)
    env = Environment(HOME)
    for name in ("heron", "ibis"):
        milestone = Milestone(env)
        milestone.name = name
        milestone.insert()
    for summary, kind, priority, component, owner in TICKETS:
        ticket = Ticket(env)
        ticket.populate({"summary": summary, "type": kind, "priority": priority, "component": component, "owner": owner, "reporter": "lead",
                         "status": "new", "milestone": "heron", "description": f"{summary}."})  # fmt: skip
        ticket.insert()
    for name, text in PAGES.items():
        page = WikiPage(env, name)
        page.text = text
        page.save("lead", "first version")
    with env.db_transaction as db:
        db(
            "INSERT INTO auth_cookie (cookie, name, ipnr, time) VALUES (%s, %s, %s, %s)",
            ("a" * 32, "lead", "", int(time.time()) + 10**8),
        )
    return {"gitlab": {"trac_auth": "a" * 32}}


found = fill()
print(json.dumps(found))
