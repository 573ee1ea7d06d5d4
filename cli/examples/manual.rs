//! Writes the manual pages and the shell completion of `ironverbs`, from the definition that parses its command line.
//!
//! ```text
//! cargo run --release -p ironverbs-cli --example manual -- ~/.local/share "$(date +%F)"
//! ```
//!
//! fills `man/man1` and the directories below a share directory where bash, zsh and fish look for completion. The pages bear the date.
//! Texts that the definition does not contain, such as exit statuses, are in `help.rs` of the command.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use ironverbs_cli::help::{self, Entry, Page};

/// The path of each shell's completion below a share directory, on Debian.
const COMPLETION: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/ironverbs"),
    (Shell::Zsh, "zsh/vendor-completions/_ironverbs"),
    (Shell::Fish, "fish/vendor_completions.d/ironverbs.fish"),
];

/// The directory of the packaged pages of `docs/`.
const DOCUMENTS: &str = "/usr/share/doc/ironverbs/docs";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(share), Some(date), None) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: manual SHARE-DIRECTORY DATE");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&share), &date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("manual: {}: {e}", Path::new(&share).display());
            ExitCode::FAILURE
        }
    }
}

fn write_all(share: &Path, date: &OsStr) -> io::Result<()> {
    for (shell, path) in COMPLETION {
        let mut file = create(share.join(path))?;
        clap_complete::generate(shell, &mut ironverbs_cli::definition(), "ironverbs", &mut file);
    }
    let mut root = ironverbs_cli::definition().disable_help_subcommand(true);
    root.build();
    let manual =
        Manual { date: date.to_string_lossy().into_owned(), source: root.render_version().trim().to_owned() };
    manual.write(&root, &share.join("man/man1"))
}

fn create(path: PathBuf) -> io::Result<fs::File> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::File::create(path)
}

/// Fields of all pages.
struct Manual {
    date: String,
    source: String,
}

impl Manual {
    /// Writes the page of `command` and those of its subcommands.
    fn write(&self, command: &Command, dir: &Path) -> io::Result<()> {
        let name = page_name(command);
        let mut file = create(dir.join(format!("{name}.1")))?;
        self.page(command, &help::page(&name.replace('-', " ")), &mut file)?;
        file.flush()?;
        let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
        shown.into_iter().try_for_each(|below| self.write(below, dir))
    }

    fn page(&self, command: &Command, page: &Page, file: &mut impl Write) -> io::Result<()> {
        // The usage in one line; the list of options follows.
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").to_owned();
        // The page has one section of options.
        let mut definition =
            command.clone().override_usage(usage).mut_args(|option| option.help_heading(None::<&str>));
        if !page.description.is_empty() {
            definition = definition.long_about(page.description.join("\n\n"));
        }
        let man = Man::new(definition)
            .title(page_name(command).to_uppercase())
            .date(&self.date)
            .source(&self.source)
            .manual("ironverbs manual");
        man.render_title(file)?;
        man.render_name_section(file)?;
        man.render_synopsis_section(file)?;
        man.render_description_section(file)?;
        let mut options = Vec::new();
        man.render_options_section(&mut options)?;
        // clap_mangen breaks the line before and after an empty one, which formatters warn of.
        file.write_all(String::from_utf8_lossy(&options).replace(".br\n\n.br\n", ".sp\n").as_bytes())?;
        if command.has_subcommands() {
            man.render_subcommands_section(file)?;
        }
        let named = command.get_arguments().any(|arg| arg.get_long() == Some("adapter"));
        let with = |own: &[Entry], nodes: &[Entry]| if named { [own, nodes].concat() } else { own.to_vec() };
        let mut roff = Roff::default();
        list(&mut roff, "EXIT STATUS", if page.exit.is_empty() { help::EXIT } else { page.exit });
        list(&mut roff, "ENVIRONMENT", &with(page.environment, help::ADAPTER_ENVIRONMENT));
        list(&mut roff, "FILES", &with(page.files, help::ADAPTER_FILES));
        list(&mut roff, "EXAMPLES", page.examples);
        see_also(&mut roff, command, page);
        roff.to_writer(file)
    }
}

/// The name of a command's page, such as `ironverbs-adapter-status`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn list(roff: &mut Roff, heading: &str, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [heading]);
    for (what, text) in entries {
        roff.control("TP", []);
        roff.text([bold(*what)]);
        roff.text([roman(*text)]);
    }
}

/// Lists the parent and child pages, those of other programs, and further documents.
fn see_also(roff: &mut Roff, command: &Command, page: &Page) {
    let name = page_name(command);
    let above = name.rsplit_once('-').map(|(above, _)| above.to_owned());
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(page_name);
    let mut pages: Vec<String> = above.into_iter().chain(below).map(|name| format!("{name}(1)")).collect();
    pages.extend(page.see.iter().map(|name| (*name).to_owned()));
    roff.control("SH", ["SEE ALSO"]);
    let last = pages.len().saturating_sub(1);
    for (number, page) in pages.iter().enumerate() {
        let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
        let comma = if number == last { "" } else { "," };
        roff.text([bold(name), roman(format!("{section}{comma}"))]);
    }
    for document in page.documents {
        roff.control("PP", []);
        roff.text([italic(format!("{DOCUMENTS}/{document}"))]);
    }
}
