//! The section of docs/mqtt.md on devices as they are: its declarations, its bindings, and its commands with their
//! output.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::daemon::{TestRoot, write};

const PAGE: &str = include_str!("../../docs/mqtt.md");

/// The section.
fn section() -> &'static str {
    let (_, section) = PAGE.split_once("\n## Devices as they are\n").unwrap();
    section.split("\n## ").next().unwrap()
}

/// The fences of a language in the section.
fn fences(language: &str) -> Vec<&'static str> {
    section().split(&format!("```{language}\n")).skip(1).map(|fence| fence.split("```").next().unwrap()).collect()
}

/// A root with the declarations and bindings of the section.
pub fn configured(root: TestRoot) -> TestRoot {
    let of_file = |file: &str| -> String {
        let head = format!("# {file}\n");
        fences("toml").into_iter().filter_map(|fence| fence.strip_prefix(&head)).collect::<Vec<_>>().join("\n")
    };
    let bindings = of_file("ledge.toml");
    assert!(bindings.matches("[[mqtt.bindings]]").count() >= 5, "{bindings}");
    write(&root.folder.path().join("ledge.toml"), bindings.as_bytes());
    root.views(&of_file("feature_views.d/rooms.toml"))
}

/// The commands of the section, each with its output.
fn commands() -> Vec<(String, String)> {
    let said = fences("console").into_iter().flat_map(|fence| fence.strip_prefix("$ ").unwrap().split("\n$ "));
    let divided = said.map(|said| {
        let lines: Vec<_> = said.split_inclusive('\n').collect();
        let end = lines.iter().position(|line| !line.ends_with("\\\n")).unwrap() + 1;
        (lines[..end].concat(), lines[end..].concat().trim_end().to_owned())
    });
    divided.collect()
}

/// Compares a text with one of the page, in which `...` stands for anything.
fn is_as_shown(text: &str, shown: &str) -> bool {
    let mut rest = text;
    shown.split("...").enumerate().all(|(index, part)| match rest.find(part) {
        Some(at) if index > 0 || at == 0 => {
            rest = &rest[at + part.len()..];
            true
        }
        _ => false,
    }) && (rest.is_empty() || shown.ends_with("..."))
}

#[test]
fn the_page_on_devices_does_what_it_says() {
    let root = configured(TestRoot::new()).set("mqtt.broker=\"mqtt://127.0.0.1\"").set("device.id=\"till-7\"");
    let checked = root.command(&["config", "check"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    let ledge = root.command(&[]);
    let words = std::iter::once(ledge.get_program()).chain(ledge.get_args()).map(|word| word.to_str().unwrap());
    let (program, settings) = { words }
        .map(|word| format!("'{word}'"))
        .collect::<Vec<_>>()
        .split_first()
        .map(|(program, settings)| (program.clone(), settings.join(" ")))
        .unwrap();
    let wrapper = root.folder.path().join("bin/ledge");
    write(&wrapper, format!("#!/bin/sh\nexec {program} \"$@\" {settings}\n").as_bytes());
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", wrapper.parent().unwrap().display(), std::env::var("PATH").unwrap());

    let commands = commands();
    assert!(commands.len() >= 7, "{commands:?}");
    for (command, shown) in commands {
        let output = Command::new("sh").args(["-ec", &command]).env("PATH", &path).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
        // A message that nothing takes is a failure.
        let is_taken = shown.contains(" takes it");
        assert_eq!(output.status.success(), is_taken, "{command}{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(is_as_shown(&said, &shown), "{command}--- prints\n{said}--- and the page has\n{shown}");
    }
}
