# mypy: ignore-errors
"""Fills the tracker with tickets, wiki pages and milestones, and prints a login session."""

import json
import os
import time

from trac.admin.console import TracAdmin
from trac.env import Environment
from trac.ticket.model import Milestone, Ticket
from trac.wiki.model import WikiPage

HOME = os.path.join(os.environ["SITE_HOME"], "trac")  # noqa: PTH118
TICKETS = [
    ("Login button is invisible on small screens", "defect", "major", "ui", "ida"),
    ("Add dark theme", "enhancement", "minor", "ui", "bo"),
    ("Crash when saving an empty note", "defect", "critical", "storage", "ida"),
    ("Write installation guide", "task", "major", "docs", "bo"),
    ("Search ignores accents", "defect", "minor", "search", "kai"),
    ("Export to CSV", "enhancement", "major", "storage", "kai"),
    ("Typo on the front page", "defect", "trivial", "docs", "ida"),
    ("Slow start on old machines", "defect", "major", "storage", "bo"),
]
PAGES = {
    "InstallGuide": "= Install =\nRun `make install`. The default port is 8844.",
    "ReleaseNotes": "= Release notes =\nVersion 2.1 was called Heron.",
    "TeamRoster": "= Team =\n * Ida: interface\n * Bo: documents\n * Kai: search",
}
ADMIN_COMMANDS = (
    "component remove component1",
    "component remove component2",
    "component add ui ida",
    "component add storage kai",
    "component add docs bo",
    "component add search kai",
    "milestone remove milestone1",
    "milestone remove milestone2",
    "milestone remove milestone3",
    "milestone remove milestone4",
    "permission add lead TRAC_ADMIN",
    "config set trac check_auth_ip disabled",
)


def fill():
    """Create all content; returns the session cookies by login."""
    env = create_environment()
    create_content(env)
    cookie = "a" * 32
    with env.db_transaction as db:
        db(
            "INSERT INTO auth_cookie (cookie, name, ipnr, time) VALUES (%s, %s, %s, %s)",
            (cookie, "lead", "", int(time.time()) + 10**8),
        )
    return {"gitlab": {"trac_auth": cookie}}


def create_environment():
    """Create the Trac environment, with its own components and milestones."""
    admin = TracAdmin()
    admin.env_set(HOME)
    admin.onecmd("initenv MiniTracker sqlite:db/trac.db")
    for command in ADMIN_COMMANDS:
        admin.onecmd(command)
    return Environment(HOME)


def create_content(env):
    """Create milestones, tickets and wiki pages."""
    for name in ("heron", "ibis"):
        milestone = Milestone(env)
        milestone.name = name
        milestone.insert()
    for summary, kind, priority, component, owner in TICKETS:
        ticket = Ticket(env)
        ticket.populate(
            {
                "summary": summary,
                "type": kind,
                "priority": priority,
                "component": component,
                "owner": owner,
                "reporter": "lead",
                "status": "new",
                "milestone": "heron",
                "description": f"{summary}.",
            }
        )
        ticket.insert()
    for name, text in PAGES.items():
        page = WikiPage(env, name)
        page.text = text
        page.save("lead", "first version")


print(json.dumps(fill()))
