//! The end of documents that were read: files in the folders of done and of failed files, by `[retention]`.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use ledge_base::open_folder::OpenFolder;

use crate::config::{InboxConfig, own_folder};

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovedFiles {
    pub removed: u64,
    /// Files, and folders, that could not be removed or read. The log says why.
    pub failed: u64,
}

/// Removes the files that an inbox moved into its folders of done and of failed files before `limit_ms`, in
/// milliseconds since the Unix epoch. Links and folders in them stay. It blocks on the disk, or on a share.
pub fn remove_processed_before(config: &InboxConfig, limit_ms: u64) -> RemovedFiles {
    let mut result = RemovedFiles::default();
    for of in [&config.done, &config.failed] {
        match expired(config, of, limit_ms) {
            Ok((folder, names)) => {
                for name in names {
                    match folder.remove(&name) {
                        Ok(()) => result.removed += 1,
                        Err(error) => failed(&mut result, config, &error),
                    }
                }
            }
            // An inbox that has read nothing yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failed(&mut result, config, &error),
        }
    }
    result
}

/// The number of files that [`remove_processed_before`] would remove.
pub fn count_processed_before(config: &InboxConfig, limit_ms: u64) -> usize {
    let count = |of| expired(config, of, limit_ms).map_or(0, |(_, names)| names.len());
    count(&config.done) + count(&config.failed)
}

fn failed(result: &mut RemovedFiles, config: &InboxConfig, error: &io::Error) {
    if result.failed == 0 {
        tracing::warn!(name: "retention.failed", inbox = %config.name, %error, "files of an inbox cannot be removed");
    }
    result.failed += 1;
}

/// A folder, and the files in it whose time has passed.
fn expired(config: &InboxConfig, path: &Path, limit_ms: u64) -> io::Result<(OpenFolder, Vec<std::ffi::OsString>)> {
    let folder = match own_folder(path) {
        Some(name) => OpenFolder::open(&config.path)?.open_child(name)?,
        None => OpenFolder::open(path)?,
    };
    let is_expired = |name: &&std::ffi::OsString| {
        let name: &OsStr = name;
        // The move into the folder is a change of the file. The time of its content is that of the scanner.
        folder.changed_ms(name).is_ok_and(|changed| changed.is_some_and(|changed| changed < limit_ms))
    };
    let names: Vec<_> = folder.names()?.iter().filter(is_expired).cloned().collect();
    Ok((folder, names))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ledge_base::clock;
    use ledge_base::toml_check;

    use super::*;
    use crate::config::InboxesConfig;

    #[derive(serde::Deserialize)]
    struct Sections {
        inbox: InboxesConfig,
    }

    fn inbox(path: &Path) -> InboxConfig {
        let text = format!("[[inbox]]\nname = 'a'\npath = '{}'\nmodel = 'm'\n", path.display());
        toml_check::parse::<Sections>("f", &text).unwrap().inbox.0.remove(0)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another program writes these files")]
    fn files_end_by_the_time_at_which_they_were_moved_and_links_and_folders_stay() {
        let folder = tempfile::tempdir().unwrap();
        let config = inbox(folder.path());
        assert_eq!(remove_processed_before(&config, u64::MAX), RemovedFiles::default(), "nothing was read yet");
        for name in ["done", "failed"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("a.pdf"), "a").unwrap();
        }
        let outside = folder.path().join("precious.pdf");
        fs::write(&outside, "b").unwrap();
        std::os::unix::fs::symlink(&outside, folder.path().join("done/link.pdf")).unwrap();
        fs::create_dir(folder.path().join("done/more")).unwrap();

        let now_ms = clock::unix_millis();
        assert_eq!(remove_processed_before(&config, now_ms - 3_600_000), RemovedFiles::default());
        assert_eq!(count_processed_before(&config, now_ms + 3_600_000), 2);
        let all = RemovedFiles { removed: 2, failed: 0 };
        assert_eq!(remove_processed_before(&config, now_ms + 3_600_000), all);
        assert!(
            outside.exists()
                && folder.path().join("done/more").exists()
                && folder.path().join("done/link.pdf").is_symlink()
        );
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another program writes this file")]
    fn a_folder_that_is_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("b.pdf"), "b").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("done")).unwrap();
        let result = remove_processed_before(&inbox(folder.path()), u64::MAX);
        assert!(result.removed == 0 && result.failed == 1 && elsewhere.path().join("b.pdf").exists());
    }
}
