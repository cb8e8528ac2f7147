//! The names that the machine and its operating system have: for people who look after many boxes.

use std::fs;
use std::path::Path;

/// The names that makers of boards leave in the place of a model.
const PLACEHOLDERS: &[&str] = &[
    "to be filled by o.e.m.",
    "system manufacturer",
    "system product name",
    "default string",
    "not specified",
    "not applicable",
    "none",
    "o.e.m.",
    "unknown",
];

/// The name of the operating system with its version, as `PRETTY_NAME` of `os-release` has it; `None` if there is none.
/// `root` is the parent of `etc`: `/`, except in tests.
pub fn os_name(root: &Path) -> Option<String> {
    // The second is the place of the first on systems whose `/etc` is empty.
    let text =
        ["etc/os-release", "usr/lib/os-release"].iter().find_map(|file| fs::read_to_string(root.join(file)).ok())?;
    let value = text.lines().rev().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?;
    Some(unquoted(value)).filter(|name| !name.is_empty())
}

/// The value of an assignment of a shell, as `os-release` limits it: one word, or a text in quotes.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let mut name = String::new();
    let mut characters = quoted.unwrap_or(value).chars();
    while let Some(character) = characters.next() {
        name.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    name.trim().to_owned()
}

/// The maker and the model of the machine, without its serial number; `None` if the firmware does not name them. `root`
/// is the parent of `proc` and `sys`.
pub fn machine_model(root: &Path) -> Option<String> {
    let read = |file: &str| {
        let text = fs::read_to_string(root.join(file)).ok()?;
        // The texts of a device tree end with a zero byte.
        let name = text.trim_matches(|character: char| character.is_whitespace() || character == '\0').to_owned();
        let is_name = !name.is_empty() && !PLACEHOLDERS.contains(&name.to_lowercase().as_str());
        is_name.then_some(name)
    };
    if let Some(model) = read("proc/device-tree/model") {
        return Some(model);
    }
    let (maker, model) = (read("sys/class/dmi/id/sys_vendor"), read("sys/class/dmi/id/product_name"));
    match (maker, model) {
        (Some(maker), Some(model)) if !model.starts_with(&maker) => Some(format!("{maker} {model}")),
        (maker, model) => model.or(maker),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        durable::replace(&path, text.as_bytes()).unwrap();
    }

    #[test]
    fn the_pretty_name_of_os_release_is_read_in_any_quotes() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(os_name(root.path()), None);
        write(root.path(), "usr/lib/os-release", "PRETTY_NAME=Minimal\n");
        assert_eq!(os_name(root.path()).unwrap(), "Minimal");
        for (line, name) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"", "Debian GNU/Linux 12 (bookworm)"),
            ("PRETTY_NAME='Rocky Linux 9.4'", "Rocky Linux 9.4"),
            ("PRETTY_NAME=\"A \\\"quoted\\\" \\$name\"", "A \"quoted\" $name"),
            ("PRETTY_NAME=\"first\"\nPRETTY_NAME=\"last\"", "last"),
            ("PRETTY_NAME=\"open", "\"open"),
        ] {
            write(root.path(), "etc/os-release", &format!("NAME=\"x\"\n{line}\nID=x\n"));
            assert_eq!(os_name(root.path()).as_deref(), Some(name), "{line}");
        }
        for line in ["PRETTY_NAME=", "PRETTY_NAME=\"\"", "NAME=x"] {
            write(root.path(), "etc/os-release", line);
            assert_eq!(os_name(root.path()), None, "{line}");
        }
    }

    #[test]
    fn the_model_of_the_machine_is_its_firmware_s_and_no_placeholder() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(machine_model(root.path()), None);
        let (maker, model) = ("sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name");
        write(root.path(), maker, "Dell Inc.\n");
        assert_eq!(machine_model(root.path()).unwrap(), "Dell Inc.");
        write(root.path(), model, "OptiPlex 3060\n");
        assert_eq!(machine_model(root.path()).unwrap(), "Dell Inc. OptiPlex 3060");
        write(root.path(), maker, "To Be Filled By O.E.M.\n");
        assert_eq!(machine_model(root.path()).unwrap(), "OptiPlex 3060");
        write(root.path(), model, "Default string\n");
        assert_eq!(machine_model(root.path()), None);
        write(root.path(), "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0");
        assert_eq!(machine_model(root.path()).unwrap(), "Raspberry Pi 5 Model B Rev 1.0");
    }
}
