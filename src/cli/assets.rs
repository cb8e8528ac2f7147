//! `ledge generate-assets`: manual pages and shell completions, from the definition of the command line itself.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use ledge_base::durable;
use roff::{Roff, roman};

use super::{Cli, Exit, Output};

/// The arguments of `ledge generate-assets`.
#[derive(Debug, Args)]
pub struct AssetsArgs {
    /// The folder to write man/ with the manual pages to, and completions/ with those for bash, zsh and fish.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Runs the verb.
pub fn run(args: &AssetsArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut files = 0_usize;
    for (path, content) in asset_files()? {
        let path = args.folder.join(path);
        durable::create_folder(path.parent().unwrap_or(Path::new(".")))?;
        durable::replace(&path, &content)?;
        files += 1;
    }
    writeln!(out, "{files} files in {}", args.folder.display())?;
    Ok(Exit::Success)
}

/// Every file with its path in the folder. The result depends only on the program, so that builds are reproducible.
fn asset_files() -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    man_pages(&command, &mut files)?;
    // Each file has the name that its shell searches for.
    for (shell, path) in [(Shell::Bash, "bash/ledge"), (Shell::Zsh, "zsh/_ledge"), (Shell::Fish, "fish/ledge.fish")] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "ledge", &mut script);
        files.push((Path::new("completions").join(path), script));
    }
    Ok(files)
}

/// Adds the manual page of a command, and those of its subcommands.
fn man_pages(command: &Command, files: &mut Vec<(PathBuf, Vec<u8>)>) -> io::Result<()> {
    let man = Man::new(command.clone().after_help(None::<&str>).after_long_help(None::<&str>)).manual("Ledge");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let more = command.get_after_long_help().or(command.get_after_help());
    if let Some(more) = more {
        help_sections(&more.to_string()).to_writer(&mut page)?;
    }
    files.push((Path::new("man").join(man.get_filename()), page));
    command.get_subcommands().try_for_each(|below| man_pages(below, files))
}

/// The sections below a help text, such as the examples, with their lines unfilled: filled as a paragraph, the commands
/// would run together on one line.
fn help_sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for line in text.lines() {
        match line.strip_suffix(':') {
            Some(heading) if !line.starts_with(' ') => {
                roff.control("fi", []).control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
            }
            _ if line.is_empty() => {}
            _ => {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_an_internal_one_has_none() {
        let names: Vec<String> = asset_files().unwrap().iter().map(|(path, _)| path.display().to_string()).collect();
        for verb in Cli::command().get_subcommands() {
            let page = format!("man/ledge-{}.1", verb.get_name());
            assert!(names.contains(&page), "{page}");
        }
        let texts = asset_files().unwrap().into_iter().map(|(_, content)| String::from_utf8(content).unwrap());
        let texts = texts.collect::<Vec<_>>().concat();
        assert!(!texts.contains("spawner") && !texts.contains("generate-assets"));
        for name in ["man/ledge.1", "man/ledge-config-check.1", "completions/bash/ledge", "completions/zsh/_ledge"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        assert!(names.len() > 20, "{names:?}");
    }

    #[test]
    fn a_page_says_what_the_help_text_says() {
        let files = asset_files().unwrap();
        let page = files.iter().find(|(path, _)| path.ends_with("ledge-config.1")).unwrap();
        let text = String::from_utf8(page.1.clone()).unwrap();
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES\n.nf\nledge config check", "ledge\\-config\\-check(1)"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn examples_keep_their_lines_and_get_their_heading() {
        let page = help_sections("Examples:\n  ledge a   does a\n  .b\n\nExit codes:\n  0 done").to_roff();
        assert_eq!(
            page,
            ".fi\n.SH EXAMPLES\n.nf\nledge a   does a\n\\&.b\n.fi\n.SH \"EXIT CODES\"\n.nf\n0 done\n.fi\n"
        );
    }
}
