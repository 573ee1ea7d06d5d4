//! Commands in README.md and docs/ must parse.

use std::{fs, path::Path};

use clap::error::ErrorKind;

/// The commands of an indented line: the words after each occurrence of the program's name, up to the shell's own syntax.
fn commands(line: &str) -> Vec<Vec<&str>> {
    let line = line.split('#').next().unwrap_or_default();
    line.split(['&', '|', ';', '>'])
        .filter_map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            let first = words.iter().position(|word| !word.contains('='))?;
            // Not the crate of that name.
            let is_it =
                words[first].rsplit('/').next() == Some("ironverbs") && words[first] != "lib/ironverbs";
            is_it.then(|| [&["ironverbs"], &words[first + 1..]].concat())
        })
        .collect()
}

#[test]
fn every_command_of_the_docs_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut found = 0;
    for page in
        docs.chain([root.join("README.md")]).filter(|page| page.extension().is_some_and(|e| e == "md"))
    {
        for line in fs::read_to_string(&page).unwrap().lines().filter(|line| line.starts_with("    ")) {
            for words in commands(line) {
                found += 1;
                let Err(error) = ironverbs_cli::definition().try_get_matches_from(&words) else { continue };
                // A placeholder such as SPEC stands for the reader's own value.
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::ValueValidation | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    ),
                    "{}: {line}\n{error}",
                    page.display()
                );
            }
        }
    }
    assert!(found > 50, "{found} commands");
}
