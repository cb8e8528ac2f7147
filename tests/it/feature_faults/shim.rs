//! The library between daemon and system, `tests/power_cut/shim.c`.

use std::fs::File;
use std::os::unix::fs::FileExt;
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

    /// A number that the shim and the test share.
    pub fn number(&self, name: &str, value: i64) -> Number {
        let path = self.file(name);
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let number = Number { file, path };
        number.set(value);
        number
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("shim.so")
    }

    /// A file next to it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// See [`Shim::number`].
pub struct Number {
    file: File,
    pub path: PathBuf,
}

impl Number {
    pub fn set(&self, value: i64) {
        self.file.write_all_at(&value.to_le_bytes(), 0).unwrap();
    }
}
