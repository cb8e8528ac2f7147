//! The findings about the shared libraries of the runtimes.

use std::path::{Path, PathBuf};

use ledge_engine::backend::Runtime;
use ledge_part::check::{Finding, FindingStatus};

use super::RuntimesConfig;

/// Checks the library of each runtime.
pub fn checks(config: &RuntimesConfig) -> Vec<Finding> {
    let names = match file_names(&config.dir) {
        Ok(names) => names,
        Err(error) => {
            let detail = format!("{}: {error}", config.dir.display());
            return vec![Finding::fail("runtimes", detail, missing_advice(&config.dir))];
        }
    };
    let mut checks = Runtime::ALL.map(|runtime| check(runtime, &config.dir, &names));
    // One runtime is enough to serve the models that it can run.
    if checks.iter().any(|check| check.status == FindingStatus::Ok) {
        for check in checks.iter_mut().filter(|check| check.status == FindingStatus::Fail) {
            check.status = FindingStatus::Warn;
        }
    }
    checks.into()
}

fn check(runtime: Runtime, folder: &Path, names: &[String]) -> Finding {
    let prefix = library(runtime);
    // Wheels and packages ship links next to the library: the longest name has the full version.
    let found = names.iter().filter(|name| version_of(name, prefix).is_some()).max_by_key(|name| name.len());
    let Some(name) = found else {
        let detail = format!("no {prefix}* in {}", folder.display());
        return Finding::fail(runtime.as_str(), detail, missing_advice(folder));
    };
    let path = folder.join(name);
    // The plain name may be a link to the one with the version.
    let target = path.canonicalize().unwrap_or_else(|_| path.clone());
    let target_name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let number = [name, &target_name].into_iter().filter_map(|name| version_of(name, prefix)).max_by_key(|v| v.len());
    let version = match number {
        Some(number) if !number.is_empty() => shown_version(runtime, number),
        _ => "of unknown version".into(),
    };
    if !path.is_file() {
        let advice = "install the runtime again";
        return Finding::fail(runtime.as_str(), format!("{} is not a file or a link to one", path.display()), advice);
    }
    Finding::ok(runtime.as_str(), format!("{version}, {}", path.display()))
}

fn library(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::OnnxRuntime => "libonnxruntime.so",
        Runtime::OpenVino => "libopenvino_c.so",
    }
}

/// The part after `libx.so.`; empty for `libx.so`; `None` for another file.
fn version_of<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    match name.strip_prefix(prefix)? {
        "" => Some(""),
        rest => rest.strip_prefix('.').filter(|version| version.starts_with(|c: char| c.is_ascii_digit())),
    }
}

/// Formats a version for people: OpenVINO writes 2026.4.1 as 2641.
fn shown_version(runtime: Runtime, number: &str) -> String {
    match (runtime, number.as_bytes()) {
        (Runtime::OpenVino, [y1, y2, minor, patch]) if number.bytes().all(|b| b.is_ascii_digit()) => {
            let [y1, y2, minor, patch] = [*y1, *y2, *minor, *patch].map(char::from);
            format!("20{y1}{y2}.{minor}.{patch}")
        }
        _ => number.to_owned(),
    }
}

fn file_names(folder: &Path) -> std::io::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn missing_advice(folder: &Path) -> String {
    let folder: PathBuf = folder.into();
    format!(
        "install the package ledge again, or run `make setup` in a checkout, or copy the library to {}, or set \
         runtimes.dir to its folder",
        folder.display()
    )
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "nobody minds half a file here")]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<(FindingStatus, String)> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let config = RuntimesConfig { dir: folder.path().to_owned(), ..RuntimesConfig::default() };
        let prefix = format!("{}/", folder.path().display());
        checks(&config).into_iter().map(|check| (check.status, check.detail.replace(&prefix, ""))).collect()
    }

    #[test]
    fn a_version_is_read_from_the_file_name() {
        let wheel = ["libonnxruntime.so.1.31.1", "libonnxruntime.so.1", "libopenvino_c.so.2641", "libopenvino.so.2641"];
        assert_eq!(
            found(&wheel),
            [
                (FindingStatus::Ok, "1.31.1, libonnxruntime.so.1.31.1".into()),
                (FindingStatus::Ok, "2026.4.1, libopenvino_c.so.2641".into()),
            ]
        );
        let plain = found(&["libonnxruntime.so", "libonnxruntime.so.debug", "libonnxruntime_providers_shared.so"]);
        assert_eq!(plain[0], (FindingStatus::Ok, "of unknown version, libonnxruntime.so".into()));
    }

    #[test]
    fn one_missing_runtime_is_a_warning_and_both_are_a_failure() {
        let statuses = |files: &[&str]| found(files).into_iter().map(|(status, _)| status).collect::<Vec<_>>();
        assert_eq!(statuses(&["libopenvino_c.so"]), [FindingStatus::Warn, FindingStatus::Ok]);
        assert_eq!(statuses(&["readme"]), [FindingStatus::Fail, FindingStatus::Fail]);
    }

    #[test]
    fn a_missing_folder_is_one_failure_and_a_link_to_nowhere_is_one_too() {
        let folder = tempfile::tempdir().unwrap();
        let config = RuntimesConfig { dir: folder.path().join("missing"), ..RuntimesConfig::default() };
        assert_eq!(checks(&config).len(), 1);
        std::os::unix::fs::symlink("gone", folder.path().join("libonnxruntime.so.1.2.3")).unwrap();
        let config = RuntimesConfig { dir: folder.path().to_owned(), ..RuntimesConfig::default() };
        assert!(checks(&config).iter().all(|check| check.status == FindingStatus::Fail));
    }
}
