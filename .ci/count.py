"""Print how many tests passed and failed, by the JUnit reports in a folder."""

import sys
from pathlib import Path
from xml.etree import ElementTree

passed = failed = 0
for report in Path(sys.argv[1]).glob("*.xml"):
    for suite in ElementTree.parse(report).iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        failed += bad
        passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
print(passed, failed)
