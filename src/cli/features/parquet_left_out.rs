//! In the place of `parquet.rs` in a build without the feature `parquet`: an error that says why.

use std::fs::File;

use anyhow::bail;
use ledge_features::backup_rows::BackupRow;

use super::table::{Columns, Reader};

const LEFT_OUT: &str = "this build of ledge does not read or write Parquet: take .csv or .jsonl, build it with the feature \
                        `parquet`, or install a package";

/// Nothing: no writer can be made.
pub enum Writer {}

impl Writer {
    /// Always an error.
    pub fn new(_: File, _: &Columns) -> anyhow::Result<Self> {
        bail!(LEFT_OUT)
    }

    /// Never called.
    pub fn add(&mut self, _: BackupRow) -> anyhow::Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {}
    }
}

/// Always an error.
pub fn read(_: File, _: &Columns) -> anyhow::Result<Reader> {
    bail!(LEFT_OUT)
}
