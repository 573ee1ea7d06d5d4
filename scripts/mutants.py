#!/usr/bin/env python3
"""Breaks the product in the ways that tests/mutants.toml lists, and reports which test catches each.

  scripts/mutants.py                     all of them
  scripts/mutants.py --sample 12 --seed 7    a dozen, selected by a seed
  scripts/mutants.py NAME..              these
  scripts/mutants.py --check             only checks that each applies where the list says; builds nothing

All mutants are compiled into one copy of the tree, below target/mutants, and IRONVERBS_MUTANT selects one of them when a test runs. Each
mutant's test must pass without it and fail with it. The last line counts how many were caught, and by which of `make test` and
`make test-all`.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / 'tests' / 'mutants.toml'
TARGET = pathlib.Path(os.environ.get('CARGO_TARGET_DIR') or ROOT / 'target') / 'mutants'
TREE = TARGET / 'tree'
# Time limits in seconds: the build, and one test.
BUILD, TEST = 1800, 120

SWITCH = '''
/// Returns true if mutant `number` is chosen.
#[doc(hidden)]
pub fn mutated(number: u32) -> bool {
    extern crate std;
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let chosen = || std::env::var("IRONVERBS_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    *CHOSEN.get_or_init(chosen) == number
}
'''


def die(words):
    sys.exit(f'mutants: {words}')


def mutants():
    """Returns the list of mutants, with their numbers."""
    found = tomllib.loads(LIST.read_text())['mutant']
    for number, mutant in enumerate(found, 1):
        mutant['number'] = number
        before, *rest = (ROOT / mutant['file']).read_text().split(mutant['find'])
        if len(rest) != 1:
            die(f"{mutant['name']}: expected its text once in {mutant['file']}, found it {len(rest)} times")
        if mutant['find'].startswith('.') or before.endswith(('.', '::')):
            die(f"{mutant['name']}: expected an expression or statements, found a method without its receiver")
    return found


def switched(mutant):
    """Returns code that selects the mutant or the original by the environment."""
    find, change = mutant['find'], mutant['change']
    either = f"if crate::mutated({mutant['number']}) {{ {change} }} else {{ {find} }}"
    return either if find.endswith((';', '}')) else f'({either})'


def write(path, text):
    """Writes `text` unless it is there already, so that cargo rebuilds only changed files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != text:
        path.write_bytes(text)


def copy_with(found):
    """Makes the copy of the tree that contains all mutants."""
    files = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    files = [name for name in files.split('\0') if name and (ROOT / name).is_file()]
    texts = {}
    for mutant in found:
        name = mutant['file']
        texts.setdefault(name, (ROOT / name).read_text())
        texts[name] = texts[name].replace(mutant['find'], switched(mutant))
        root = name.split('/src/')[0] + '/src/lib.rs'
        texts.setdefault(root, (ROOT / root).read_text())
        if SWITCH not in texts[root]:
            texts[root] += SWITCH
    for name in files:
        write(TREE / name, texts[name].encode() if name in texts else (ROOT / name).read_bytes())
        (TREE / name).chmod((ROOT / name).stat().st_mode)
    for old in TREE.rglob('*'):
        if old.is_file() and str(old.relative_to(TREE)) not in files:
            old.unlink()


def build():
    """Builds the copy. Returns the tests of each binary, and its working directory."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(TARGET), RUSTFLAGS='-Awarnings')
    cargo = [os.environ.get('CARGO', 'cargo'), 'build', '--locked', '--quiet', '--profile', 'quick', '--workspace']
    subprocess.run(cargo + ['--lib', '--bins', '--tests', '--examples'], cwd=TREE, env=env, timeout=BUILD, check=True)
    nextest = subprocess.run([ROOT / 'scripts/nextest.sh', 'path'], capture_output=True, text=True, check=True)
    words = [nextest.stdout.strip(), 'nextest', 'list', '--cargo-profile', 'quick', '--locked', '--workspace']
    listed = subprocess.run(words + ['--message-format', 'json'], cwd=TREE, env=env, capture_output=True, text=True, timeout=BUILD)
    if listed.returncode != 0:
        die(f'no list of tests: {listed.stderr}')
    return json.loads(listed.stdout)['rust-suites']


def passes(suite, name, number):
    """Returns true if test `name` passes with mutant `number` selected; 0 selects none."""
    env = dict(os.environ, IRONVERBS_MUTANT=str(number), PROPTEST_RNG_SEED='1')
    words = [suite['binary-path'], '--exact', name]
    try:
        done = subprocess.run(words, cwd=suite['cwd'], env=env, capture_output=True, text=True, timeout=TEST)
    except subprocess.TimeoutExpired:
        return False
    if 'running 1 test' not in done.stdout and number == 0:
        die(f'expected one test of the name {name}, found\n{done.stdout}{done.stderr}')
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', help='mutants, by name; all without')
    parser.add_argument('--sample', type=int, help='so many of them')
    parser.add_argument('--seed', type=int, default=1, help='what chooses the sample')
    parser.add_argument('--check', action='store_true', help='only compare the list with the source')
    options = parser.parse_args()
    found = mutants()
    if options.check:
        return
    chosen = [mutant for mutant in found if not options.names or mutant['name'] in options.names]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
        print(f'mutants: {len(chosen)} of {len(found)} by seed {options.seed}', flush=True)
    copy_with(found)
    suites = build()
    missed, quick, healthy = [], 0, {}
    for mutant in chosen:
        binary, name = mutant['test'].split(' ', 1)
        suite = suites.get(binary) or die(f"{mutant['name']}: expected a test binary {binary}, found none")
        case = suite['testcases'].get(name) or die(f"{mutant['name']}: expected a test {name} in {binary}, found none")
        at_once = case['filter-match']['status'] == 'matches'
        if not healthy.setdefault(mutant['test'], passes(suite, name, 0)):
            die(f"{mutant['test']} fails without a mutant")
        caught = not passes(suite, name, mutant['number'])
        command = ('make test' if at_once else 'make test-all') if caught else 'MISSED'
        print(f"{command:<13} {mutant['name']:<50} {mutant['test']}", flush=True)
        quick += caught and at_once
        missed += [] if caught else [mutant['name']]
    print(f'mutants: {len(chosen) - len(missed)} of {len(chosen)} caught, {quick} of them by make test')
    if missed:
        die('not caught: ' + ', '.join(missed))


if __name__ == '__main__':
    main()
