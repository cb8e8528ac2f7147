//! Checks that commands, flags, link targets and metrics in the documents exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use ledge::cli::{Cli, InternalCli};

/// The text of every document, by its path in the checkout.
fn documents() -> Vec<(PathBuf, String)> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut found) = (vec![checkout.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.iter().any(|(path, _)| path.ends_with("docs/mqtt.md")), "{found:?}");
    found
}

/// The lines of a document outside its fences, and those within with the language of theirs.
fn lines(text: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut fence = None;
    text.lines().filter_map(move |line| match (line.trim_start().strip_prefix("```"), fence) {
        (Some(language), None) => {
            fence = Some(language);
            None
        }
        (Some(_), Some(_)) => {
            fence = None;
            None
        }
        (None, _) => Some((fence, line)),
    })
}

/// The commands in a document: after the prompts of its fences, and between backticks.
fn typed(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (fence, line) in lines(text) {
        match fence {
            Some("console") => found.extend(line.strip_prefix("# ").or_else(|| line.strip_prefix("$ "))),
            Some("sh" | "") => found.push(line),
            Some(_) => {}
            None => found.extend(line.split('`').skip(1).step_by(2)),
        }
    }
    found
}

/// The arguments of each call of `ledge` in a line of a shell.
fn calls(line: &str) -> Vec<Vec<&str>> {
    let calls = line.split([';', '|', '&', '(', ')', '>', '<']).filter_map(|command| {
        let mut words = command.split_whitespace().peekable();
        words.next_if_eq(&"sudo");
        if words.next_if_eq(&"-u").is_some() {
            words.next();
        }
        let program = words.next()?;
        let is_ledge = program == "ledge" || program.ends_with("/ledge");
        is_ledge.then(|| words.take_while(|word| !["#", "..."].contains(word)).collect())
    });
    calls.collect()
}

/// The part of a command that does not exist.
fn unknown(ledge: &Command, call: &[&str]) -> Option<String> {
    let (mut command, mut words) = (ledge, call.iter().peekable());
    while let Some(word) = words.next() {
        let word = word.trim_matches(|c: char| "'\"[],.:".contains(c));
        if let Some(flag) = word.strip_prefix("--") {
            let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let Some(known) = command.get_arguments().find(|known| known.get_long() == Some(name)) else {
                return Some(format!("--{name} of {}", command.get_name()));
            };
            if known.get_action().takes_values() && value.is_none() {
                words.next();
            }
        } else if command.has_subcommands() && !word.is_empty() {
            match command.find_subcommand(word) {
                Some(below) => command = below,
                // A word in the place of a verb, such as VERB.
                None if word.chars().all(|c| c.is_ascii_uppercase()) => return None,
                None => return Some(format!("{word} of {}", command.get_name())),
            }
        }
    }
    None
}

#[test]
fn every_command_in_the_documents_exists() {
    let internal = InternalCli::command();
    let mut ledge = Cli::command().subcommands(internal.get_subcommands().cloned());
    ledge.build();
    let (mut wrong, mut verbs) = (Vec::new(), BTreeSet::new());
    for (path, text) in documents() {
        for call in typed(&text).into_iter().flat_map(calls) {
            verbs.extend(call.first().map(|verb| (*verb).to_owned()));
            wrong.extend(unknown(&ledge, &call).map(|what| format!("{}: {call:?}: no {what}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let typed = Cli::command();
    let missing: Vec<_> =
        typed.get_subcommands().map(Command::get_name).filter(|verb| !verbs.contains(*verb)).collect();
    assert!(missing.is_empty(), "no document shows {missing:?}");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let mut ledge = Cli::command();
    ledge.build();
    let found = |line: &str| {
        let calls = calls(line);
        assert!(!calls.is_empty(), "{line}");
        calls.iter().find_map(|call| unknown(&ledge, call))
    };
    assert_eq!(found("ledge keys make"), Some("make of keys".to_owned()));
    assert_eq!(
        found("systemctl restart ledge && sudo -u ledge ledge tls show --pem"),
        Some("--pem of show".to_owned())
    );
    assert_eq!(
        found("(umask 077; ledge keys create till --rolle infer) > till.key"),
        Some("--rolle of create".to_owned())
    );
    assert_eq!(found("target/release/ledge --root .ledge serve   # here"), None);
}

/// The name by which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).filter(|(fence, line)| fence.is_none() && line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let (mut broken, mut links) = (Vec::new(), 0);
    for (path, text) in documents() {
        let outside: String = lines(&text).filter(|(fence, _)| fence.is_none()).map(|(_, line)| line).collect();
        for link in outside.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = target.exists()
                && anchor.is_none_or(|anchor| anchors(&std::fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links > 40, "only {links} links were found");
}

/// The Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn every_metric_has_a_row() {
    // Values of labels, which look like metrics.
    const LABEL_VALUES: [&str; 4] = ["feature_view", "not_tls", "timed_out", "too_many"];
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = rust_files(&checkout.join("src")).into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    let told = std::fs::read_to_string(checkout.join("docs/operating.md")).unwrap();
    let rows: BTreeSet<_> = told.split('`').skip(1).step_by(2).collect();
    let (mut missing, mut found) = (Vec::new(), 0);
    for text in sources.filter(|text| text.contains("DescriptorEncoder")) {
        let code = text.split("#[cfg(test)]").next().unwrap();
        for word in code.split('"').skip(1).step_by(2) {
            let is_metric = word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_metric && !LABEL_VALUES.contains(&word) {
                found += 1;
                if !rows.contains(word) && !rows.contains(format!("{word}_total").as_str()) {
                    missing.push(word.to_owned());
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/operating.md has no row for {missing:?}");
    assert!(found > 60, "only {found} metrics were found");
}
