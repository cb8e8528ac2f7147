//! The library between daemon and system, `tests/power_cut/shim.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The compiled shim.
pub struct Shim {
    folder: TempDir,
}

impl Shim {
    /// Compiles it.
    pub fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_cut/shim.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(folder.path().join("shim.so"))
            .arg(source);
        let done = compiler.output().expect("a C compiler, cc, which building Ledge needs as well");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Self { folder }
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("shim.so")
    }

    /// A file beside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
