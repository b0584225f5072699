"""All 24 findings of the break-in report: each has tests, they hold, and they fail without its fix.

The table is `findings.json` (see findings.py).
"""

import pytest
from tests.attack.campaign import LEVEL, record
from tests.attack.findings import (
    NUMBERS,
    belongs_to,
    parts,
    pytest_run,
    results_of,
    run_without,
    summary,
)

TESTS = list(dict.fromkeys(test for part in parts() for test in part.tests))


def test_every_finding_has_a_test_a_fix_and_a_proof():
    assert {part.finding for part in parts()} == set(NUMBERS)
    for part in parts():
        assert part.tests and part.fix and part.taken_out and part.without_the_fix, part.name
    assert len({part.name for part in parts()}) == len(parts())


def test_every_test_of_the_table_exists():
    files = sorted({test.partition("::")[0] for test in TESTS})
    done = pytest_run("--collect-only", *files)
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    present = {line.partition("::")[0] for line in collected}
    # A file whose extra is missing here collects nothing at all.
    missing = [
        test
        for test in TESTS
        if test.partition("::")[0] in present and not any(belongs_to(c, test) for c in collected)
    ]
    assert present and not missing, done.stdout[-2000:]


@pytest.mark.skipif(LEVEL == "commit", reason="tests that .ci/run has run already: nightly")
@pytest.mark.timeout(3600)
def test_every_reproduction_holds():
    found = summary(results_of(TESTS))
    record("findings", {"findings": found})
    assert {number: row["not_passed"] for number, row in found.items() if not row["passed"]} == {}


@pytest.mark.skipif(LEVEL != "weekly", reason="half an hour: .ci/attack weekly")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", parts(), ids=lambda part: part.name)
def test_without_its_fix_every_test_of_a_row_fails(part):
    outcome = run_without(part)
    assert outcome.unaware(part) == [], outcome.errors
