//! Replaces `parquet.rs` in a build without the feature `parquet`: every call is an error that says why.

use std::fs::File;

use anyhow::bail;
use ledge_features::backup_rows::BackupRow;

use super::rows::{FileRows, TableColumns};

const PARQUET_UNAVAILABLE: &str = "this build of ledge cannot read or write Parquet: use .csv or .jsonl, build it with \
                                   the feature `parquet`, or install a package";

/// A writer that cannot be created.
pub enum ParquetWriter {}

impl ParquetWriter {
    /// Always an error.
    pub fn new(_: File, _: &TableColumns) -> anyhow::Result<Self> {
        bail!(PARQUET_UNAVAILABLE)
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
pub fn read(_: File, _: &TableColumns) -> anyhow::Result<FileRows> {
    bail!(PARQUET_UNAVAILABLE)
}
