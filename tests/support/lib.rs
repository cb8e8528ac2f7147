//! Shared code for the tests of several crates.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc, reason = "these are tests")]

pub mod toml_layouts;
