//! Paths of the configuration, which are relative to its root.

use std::path::{Path, PathBuf};

/// Makes a path relative to `root` unless it is absolute. It is rebuilt from its components, so that no "." stays in
/// the middle.
pub fn resolve(path: &mut PathBuf, root: &Path) {
    *path = root.join(&path).components().collect();
}

/// The same for a path that may be empty, which means that there is none.
pub fn resolve_if_set(path: &mut PathBuf, root: &Path) {
    if !path.as_os_str().is_empty() {
        resolve(path, root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_below_the_root_and_an_absolute_one_stays() {
        for (given, resolved) in [("a", "/root/a"), (".", "/root"), ("./a/./b", "/root/a/b"), ("/x/./y", "/x/y")] {
            let mut path = PathBuf::from(given);
            resolve(&mut path, Path::new("/root/."));
            assert_eq!(path.as_os_str(), resolved, "{given}");
        }
    }
}
