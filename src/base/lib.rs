//! The values and tools that every other crate may use, and that know none of the domain: names, tensors, time, files.
//!
//! No async runtime, no thread, no network.

/// Names, valid by construction.
pub mod names;
/// Tensors, which fill their shapes.
pub mod tensor;
/// Who asked.
pub mod principal;
/// How much memory the calls of all callers take together.
pub mod memory_budget;
/// Where secrets lie. Read when needed, never kept.
pub mod secret;
/// TOML with every mistake reported at once.
pub mod toml_check;
/// Messages without the names of Rust.
pub mod plain_words;
/// The only unsafe code.
pub mod sys;
/// The wall clock. The only place that reads it.
pub mod clock;
/// Files that are old or new after a power cut, never half.
pub mod durable;
/// Folders that a foreign library writes.
pub mod checked_folder;
/// The pauses between attempts.
pub mod backoff;
/// What others do again and again, told now and then.
pub mod complaints;
/// So many calls a second, and so many at once.
pub mod token_bucket;
/// Logs and the machine's figures. Nothing in it decides anything.
pub mod telemetry;
