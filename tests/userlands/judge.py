"""Runs rdma-core's own tests file by file, and maintains the page with their results. It is placed in a folder, beside `tests`.

  judge.py run DEVICE FILE..     a line per test: file, test, outcome, reason; separated by tabs
  judge.py one DEVICE FILE DONE  the same for one file without the tests named in DONE, in this process
  judge.py show                  the counts of each file, and the reasons of tests that did not pass
  judge.py write PAGE            prints PAGE with its table and reasons updated
  judge.py worse PAGE            prints regressions against PAGE, and fails if there are any

show, write and worse read the output of run, each line prefixed with the suite's name and a tab.

A test that crashes its process or does not end within LIMIT is an error, and the rest of its file continues in another process.
"""
import collections
import importlib
import multiprocessing
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# The core, followed by files that also concern other kinds of devices.
FILES = ('addr atomic cq cq_events cqex device flow fork mr odp parent_domain pd qp qpex relaxed_ordering rss_traffic shared_pd'
         ' srq mlx5_huge_page rdmacm').split()
LIMIT = 40
OUTCOMES = ('passed', 'skipped', 'failed', 'errors')


# --- in the folder --------------------------------------------------------------------------------------------------

class Lines(unittest.TestResult):
    """Prints the outcome of each test as soon as it is known."""

    def __init__(self, file):
        super().__init__()
        self.file, self.said = file, set()

    def line(self, test, outcome, reason=''):
        name = test.id().split('.', 2)[-1]
        if name in self.said and outcome != 'started':
            return
        if outcome != 'started':
            self.said.add(name)
        print(self.file, name, outcome, ' '.join(str(reason).split())[:300], sep='\t', file=OUT, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.line(test, 'started')

    def addSuccess(self, test):
        self.line(test, 'passed')

    def addSkip(self, test, reason):
        self.line(test, 'skipped', reason)

    def addFailure(self, test, err):
        self.line(test, 'failed', self.last(err))

    def addError(self, test, err):
        self.line(test, 'errors', self.last(err))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.line(test, 'failed', self.last(err))

    @staticmethod
    def last(err):
        kind, value, trace = err
        where = ''
        while trace:
            code = trace.tb_frame.f_code
            if '/tests/' in code.co_filename or 'pyverbs' in code.co_filename:
                where = f'{os.path.basename(code.co_filename)}:{trace.tb_lineno}'
            trace = trace.tb_next
        return f'{kind.__name__}: {value} ({where})'


def cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def one(device, file, done):
    global OUT
    # Some tests pass unpicklable objects to child processes, which only works with fork; newer Python no longer uses it by default.
    multiprocessing.set_start_method('fork', force=True)
    # Output of the tests must not mix with ours.
    OUT = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    sys.path[:0] = [HERE, os.path.join(HERE, 'tests')]
    sys.argv[1:] = ['--dev', device, '--gid', '1', '--port', '1']
    from args_parser import parser
    parser.parse_args()
    # The package's own __init__ imports every file; only this one is needed, with the modules that it shares with others.
    package = type(sys)('tests')
    package.__path__ = [os.path.join(HERE, 'tests')]
    sys.modules['tests'] = package
    # This and mlx5_base import each other, and only this order works.
    importlib.import_module('tests.utils')
    module = importlib.import_module('tests.test_' + file)
    result = Lines(file)
    for test in cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = test.id().split('.', 2)[-1]
        if name in done or '_FailedTest' in name:
            continue
        # The tests choose attributes at random, and are skipped if those are not supported, so the seed is fixed.
        random.seed(name)
        unittest.TestSuite([test]).run(result)
        result.said.add(name)
    OUT.flush()


def follow(process):
    """Yields the lines of a process, and None if LIMIT passes without one."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line.rstrip('\n'))
        lines.put('')
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=LIMIT)
        except queue.Empty:
            yield None
            return
        if line == '':
            return
        yield line


def run(device, files):
    """Runs each file in its own process. Returns True if running them caused no problem."""
    for file in files:
        if not os.path.exists(os.path.join(HERE, 'tests', f'test_{file}.py')):
            continue
        done, broken = [], 0
        while True:
            process = subprocess.Popen([sys.executable, __file__, 'one', device, file, ','.join(done)],
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)
            under_way, hung = None, False
            for line in follow(process):
                if line is None:
                    hung = True
                    break
                _, name, outcome, _ = line.split('\t')
                if outcome == 'started':
                    under_way = name
                else:
                    under_way = None
                    done.append(name)
                    print(line, flush=True)
            try:
                code = None if hung else process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                code = None
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if code == 0:
                break
            how = f'did not end within {LIMIT} s' if code is None else f'its process ended with {code}'
            name = under_way or ('after ' + done[-1] if done else 'import')
            print(file, name, 'errors', how, sep='\t', flush=True)
            done.append(name)
            broken += 1
            if under_way is None or broken > 20:
                break


# --- the page -------------------------------------------------------------------------------------------------------

def read():
    """Reads the rows. Returns for each suite {file: Counter of outcomes} and [(file, test, outcome, reason)]."""
    found = {}
    for line in sys.stdin:
        suite, *row = line.rstrip('\n').split('\t')
        counts, rows = found.setdefault(suite, ({}, []))
        counts.setdefault(row[0], collections.Counter())[row[2]] += 1
        rows.append(row)
    return found


def cell(found):
    if found is None:
        return '-'
    parts = [f'{found["passed"]} of {sum(found.values())}']
    parts += [f'{found[o]} {o}' for o in ('failed', 'errors') if found[o]]
    return ', '.join(parts)


def show(found):
    for name, (counts, rows) in found.items():
        for file, counted in counts.items():
            print(f'{name:9} {file:17} ran {sum(counted.values()):3}  ' +
                  '  '.join(f'{outcome} {counted[outcome]:3}' for outcome in OUTCOMES))
            reasons = collections.defaultdict(list)
            for row in rows:
                if row[0] == file and row[2] != 'passed':
                    reasons[row[2], row[3]].append(row[1].split('.')[-1])
            for (outcome, reason), tests in reasons.items():
                print(f'{"":12}{outcome}: {reason}: {" ".join(tests)}')


def table(page, found):
    out = ['| File | ' + ' | '.join(found) + ' |', '|---' * (len(found) + 1) + '|']
    totals = {name: collections.Counter() for name in found}
    for file in FILES:
        for name, (counts, _) in found.items():
            totals[name].update(counts.get(file, {}))
        out.append(f'| {file} | ' + ' | '.join(cell(counts.get(file)) for counts, _ in found.values()) + ' |')
    out.append('| together | ' + ' | '.join(cell(total) for total in totals.values()) + ' |')
    for outcome, title in (('skipped', 'Skipped, and the reason the suite gives'), ('failed', 'Failing'), ('errors', 'In error')):
        on = collections.defaultdict(dict)
        for name, (_, rows) in found.items():
            for file, test, what, reason in rows:
                if what == outcome and file in FILES:
                    # Numbers that change from run to run carry no information.
                    reason = re.sub(r'0x[0-9a-f]{6,}', '0x..', reason).replace('|', '\\|')
                    on[file, reason, test.split('.')[-1]][name] = True
        if not on:
            continue
        alike = collections.defaultdict(list)
        for (file, reason, test), names in on.items():
            names = 'all' if len(names) == len(found) else ', '.join(names)
            alike[FILES.index(file), reason, names].append(test)
        out += ['', f'{title}:', '', '| File | Reason | Tests | On |', '|---|---|---|---|']
        for (file, reason, names), tests in sorted(alike.items()):
            out.append(f'| {FILES[file]} | {reason} | {" ".join(sorted(tests))} | {names} |')
    text = open(page, encoding='utf-8').read()
    head, rest = text.split('<!-- counts -->\n', 1)
    _, tail = rest.split('<!-- end of counts -->', 1)
    return head + '<!-- counts -->\n' + '\n'.join(out) + '\n<!-- end of counts -->' + tail


def worse(page, found):
    """Returns the regressions against the page, as lines."""
    text = open(page, encoding='utf-8').read().split('<!-- counts -->\n', 1)[1]
    lines = [line.strip('| ').split(' | ') for line in text.split('\n\n', 1)[0].splitlines()]
    names, said = lines[0][1:], {}
    for line in lines[2:]:
        for name, value in zip(names, line[1:]):
            said[line[0], name] = {kind: int(number) for number, kind in
                                   re.findall(r'(\d+) (of|failed|errors)', value)}
    complaints = []
    for name, (counts, rows) in found.items():
        for file in FILES:
            was, now = said.get((file, name), {}), counts.get(file, collections.Counter()).copy()
            # Not every machine has huge pages available.
            now['passed'] += sum(row[0] == file and 'no huge pages' in row[3] for row in rows)
            before = f'expected {was.get("of", 0)} passed, {was.get("failed", 0)} failed, {was.get("errors", 0)} in error'
            if now['passed'] < was.get('of', 0) or any(now[o] > was.get(o, 0) for o in ('failed', 'errors')):
                complaints.append(f'{name} {file}: {before}; found {cell(now)}')
                complaints += ['    ' + ' '.join(row[1:]) for row in rows if row[0] == file and row[2] != 'passed']
    return complaints


def main():
    command, *rest = sys.argv[1:]
    if command == 'run':
        run(rest[0], rest[1:] or FILES)
    elif command == 'one':
        one(rest[0], rest[1], rest[2].split(','))
    else:
        found = read()
        if command == 'show':
            show(found)
        elif command == 'write':
            print(table(rest[0], found), end='')
        else:
            complaints = worse(rest[0], found)
            print('\n'.join(complaints), file=sys.stderr)
            sys.exit(1 if complaints else 0)


if __name__ == '__main__':
    main()
