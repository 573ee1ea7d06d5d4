"""Prints the results of scripts/test.sh: failed and skipped tests with reasons, second tries, the slowest; counts in the last line.

  results.py FOLDER --times PART=SECONDS.. --failed PART..

FOLDER has a report of nextest (JUnit's XML) or an output (text) for each part. A passed test that printed a line `skipped: REASON` counts
as skipped. A part that does not list single tests counts as one. Exits with 1 if anything failed.
"""
import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree

SLOWEST = 10


class Found:
    """The counts, and the tests to list for each."""

    def __init__(self):
        self.passed, self.failed, self.skipped, self.retried, self.times = 0, [], [], [], []

    def report(self, file):
        """Adds a report of nextest."""
        for case in xml.etree.ElementTree.parse(file).iter('testcase'):
            name = f"{case.get('classname')} {case.get('name')}"
            self.times.append((float(case.get('time') or 0), name))
            said = ''.join(text or '' for text in (case.findtext('system-out'), case.findtext('system-err')))
            reason = re.search(r'^skipped: .*', said, re.MULTILINE)
            if case.find('failure') is not None or case.find('error') is not None:
                self.failed.append(name)
                continue
            if case.find('flakyFailure') is not None or case.find('flakyError') is not None:
                self.retried.append(name)
            if reason:
                self.skipped.append(f'{name}: {reason.group()}')
            else:
                self.passed += 1

    def words(self, file, failed):
        """Adds the output of a part; `failed` tells if the part failed."""
        text = file.read_text(errors='replace')
        self.skipped += [f'{file.stem}: {line}' for line in re.findall(r'^(?:\S+: )?skipped: .*', text, re.MULTILINE)]
        self.retried += [f'{file.stem}: {name}' for name in re.findall(r'^second try: (.*)', text, re.MULTILINE)]
        counts = re.findall(r'^test result: \w+\. (\d+) passed; (\d+) failed', text, re.MULTILINE)
        self.passed += sum(int(passed) for passed, _ in counts)
        wrong = sum(int(number) for _, number in counts)
        self.failed += [f'{file.stem}: {name}' for name in re.findall(r'^test (\S+) .*\.\.\. FAILED', text, re.MULTILINE)][:wrong]
        if failed and not wrong:
            self.failed.append(file.stem)
        elif not counts and not failed and not text.startswith('skipped: '):
            self.passed += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--times', nargs='*', default=[])
    parser.add_argument('--failed', nargs='*', default=[])
    options = parser.parse_args()
    found, seen = Found(), set()
    for file in sorted(options.folder.iterdir()):
        seen.add(file.stem)
        if file.suffix == '.xml':
            found.report(file)
        else:
            found.words(file, file.stem in options.failed)
    found.failed += [part for part in options.failed if part not in seen]
    # A part may fail although all its tests passed, for example when the runner was killed.
    if options.failed and not found.failed:
        found.failed += options.failed
    if found.times:
        print(f'\nslowest {SLOWEST}:')
        for seconds, name in sorted(found.times, reverse=True)[:SLOWEST]:
            print(f'{seconds:8.1f} s  {name}')
    for title, lines in (('skipped', found.skipped), ('second try', found.retried), ('failed', found.failed)):
        if lines:
            print(f'\n{title}:')
            for line in lines:
                print(f'  {line}')
    steps = [step.split('=') for step in options.times]
    total = sum(int(seconds) for _, seconds in steps)
    print(f"\n{', '.join(f'{name} {seconds} s' for name, seconds in steps)}; {total // 60} min {total % 60} s in all")
    retried = f", {len(found.retried)} retried" + (f" ({', '.join(found.retried)})" if found.retried else '')
    print(f'{found.passed} passed, {len(found.failed)} failed, {len(found.skipped)} skipped{retried}')
    sys.exit(1 if found.failed else 0)


if __name__ == '__main__':
    main()
