//! Values and small tools that every other crate may use, and that know nothing of the domain: names, tensors,
//! memory, time, files, secrets, TOML, logs.
//!
//! Files, in reading order:
//! * `names.rs` - names of models, versions and the like, valid by construction
//! * `tensor.rs` - tensors as plain data: a datatype, a shape, and bytes that fill it
//! * `principal.rs` - the caller of a request, by its credential or else by its transport
//! * `memory_budget.rs` - the memory that the calls of all callers take together, and the share of one caller
//! * `token_bucket.rs` - a rate limit: calls a second over time, and calls at once after a quiet time
//! * `backoff.rs` - the pauses between attempts
//! * `retry.rs` - failures remembered across starts, and the growing pauses before the next try
//! * `log_limiter.rs` - limits repeated log messages, about calls and about work that is tried again until it succeeds
//! * `clock.rs` - the wall clock, and the earliest time that is possible when the clock is wrong
//! * `month.rs` - a month of the calendar
//! * `time_id.rs` - the id of a thing that this box made, which sorts by its time
//! * `durable.rs` - files that have the old or the new content after a power cut, never half of one
//! * `stored_form.rs` - the stored form of a small file: a head, a checksum, the content
//! * `open_folder.rs` - an open folder, in which files have names and no link is followed
//! * `contained.rs` - files of a folder, read without following a link out of it
//! * `checked_folder.rs` - a folder that a foreign library writes, read only where the library finished
//! * `secret.rs` - places of secrets: a file, or a credential of systemd
//! * `config_path.rs` - paths of the configuration, relative to its root
//! * `toml_check.rs`, `toml_check/` - TOML read into a type, with mistakes and their places; `keys.rs` has the keys of
//!   entries, `reader.rs` deserializes
//! * `serde_messages.rs` - messages of `serde_json` without the names of Rust's types
//! * `sys.rs` - system calls that no safe crate wraps
//! * `telemetry/` - the log and the figures of the machine:
//!   * `logging.rs`, `journal.rs` - the log, to standard error or with searchable fields to systemd's journal
//!   * `event_name.rs` - the names of events, such as `update.committed`, in JSON and in the journal
//!   * `system.rs`, `system/` - CPU, memory, disk, the limits of the control group, and the names of machine and system
//!   * `process.rs`, `machine.rs` - resources that this process uses; load, frequency and temperature of the machine
//!   * `service_usage.rs` - resources that this process and all that it started use together
//!   * `messages.rs` - counters of MQTT, written by `mqtt` and read by `/metrics`
//! * `build.rs` - the build script: notes the time of the build; the time never runs before it
//!
//! Invariants:
//! * No async runtime, no thread, no network. Nothing here knows a model, a protocol or another crate of Ledge.
//! * A `Tensor` fills its shape. A `ModelName` is one safe path component and one topic level. No code below the edge
//!   checks them again.
//! * Tensor bytes are little-endian and laid out as on the wire, so a binary tensor is not encoded again between
//!   socket and runtime. `BYTES` tensors keep their length prefixes.
//! * Only `clock.rs` reads the wall clock. All other code gets the time passed in.
//! * Only `sys.rs` has unsafe code, each block with the reason why it is sound.
//! * A secret is read when it is needed, and never kept.
//! * Telemetry decides nothing.
//!
//! # Where it is decided
//!
//! * The caller that gets no memory because others wait for it: `memory_budget.rs` (`BudgetUsage::admit`)
//! * A link in the folder of a model: `contained.rs`
//! * A time that is wrong: `clock.rs` (`ClockFloor`). Certificates, keys and TUF metadata are then judged by the floor;
//!   features accept any event time (`FeaturesConfig::accepted_until`); `updates/doctor.rs` reports it
//! * The name of an event: the macro of `tracing` that logs it (`name: "update.committed"`); `telemetry/event_name.rs`
//!   puts it into JSON and the journal
//! * The processes that count in the figures of cores and memory: `telemetry/service_usage.rs`. Each counts from its
//!   start, in `isolation/starter.rs`, `isolation/spawner.rs` or `documents/pages.rs`

pub mod names;
pub mod open_folder;
pub mod tensor;
pub mod principal;
pub mod memory_budget;
pub mod secret;
pub mod config_path;
pub mod toml_check;
pub mod serde_messages;
pub mod sys;
pub mod clock;
pub mod month;
pub mod stored_form;
pub mod durable;
pub mod contained;
pub mod checked_folder;
pub mod backoff;
pub mod retry;
pub mod log_limiter;
pub mod time_id;
pub mod token_bucket;
pub mod telemetry;
