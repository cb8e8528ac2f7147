//! Model files, read for the facts about them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ledge_base::sys;
use ledge_engine::backend::ModelFormat;
use ledge_engine::files::{self, ModelFileFacts};
use ledge_engine::pipeline::work::panic_message;

/// Reads an open model file. A panic is an error of this file only.
pub fn read(format: ModelFormat, file: &File) -> Result<Box<ModelFileFacts>, String> {
    let read = || {
        let bytes = content(file).map_err(|error| format!("cannot be read: {error}"))?;
        #[cfg(feature = "fault-injection")]
        if let Some(facts) = super::faults::read(&bytes) {
            return Ok(Box::new(facts));
        }
        files::read(format, &bytes).map(Box::new)
    };
    let read = catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|panic| Err(format!("cannot be read: panicked: {}", panic_message(&*panic))));
    sys::return_free_memory();
    read
}

/// The whole file, regardless of its position, which the daemon shares.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    content.try_reserve_exact(length)?;
    content.resize(length, 0);
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}
