//! Ledge turns a CPU-only server into an inference appliance. The modules in reading order, with an invariant for each:
//! `ARCHITECTURE.md` has the map.
//!
//! The direction of dependencies is checked by `tests/it/tidy.rs`: a module uses only what stands below it here.

/// The command line: one file a verb.
pub mod cli;
/// The composition root. The only file that sees everything.
pub mod daemon;
/// The configuration: every mistake at once, or a value that needs no further check.
pub mod config;
/// HTTP. The only code that knows axum and hyper's server.
pub mod http;
/// MQTT. The only code that knows rumqttc, of which it uses the codec.
pub mod mqtt;
/// What this box tells the platform that looks after it. It knows no transport.
pub mod fleet;
/// The Open Inference Protocol: bytes to requests and answers to bytes. It knows no transport.
pub mod protocol;
/// One inference, whatever the protocol. Each call is counted once and audited once.
pub mod serving;
/// Signed updates. Nothing runs that was not signed for it, and no failure takes a running version away.
pub mod updates;
/// The model repository, on disk and loaded. A live version goes only when its replacement is ready.
pub mod repository;
/// Between what people send and tensors. Pure.
pub mod pipeline;
/// The audit log: records in a Merkle tree, signed heads, copies of them elsewhere. What was durable stays provable.
pub mod audit;
/// The online feature store. What it acknowledged survives a power cut.
pub mod features;
/// Running all models on one budget of cores, a worker a core. It opens no socket and writes no file.
pub mod inference;
/// The only code that opens outbound connections: to what the allow-list has, and of a closed list of contents.
pub mod egress;
/// Who this box is, and who may do what on it. It keeps no secret of a caller.
pub mod identity;
/// Logs and the machine's figures. Nothing in it decides anything.
pub mod telemetry;
/// Names, valid by construction.
pub mod names;
/// Tensors, which fill their shapes.
pub mod tensor;
/// Who asked.
pub mod principal;
/// What is worth proving later. Recording never blocks.
pub mod audit_event;
/// Where secrets lie. Read when needed, never kept.
pub mod secret;
/// Messages without the names of Rust.
pub mod plain_words;
/// TOML with every mistake reported at once.
pub mod toml_check;
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
/// Ready when the last latch is dropped.
pub mod readiness;
/// Tasks that do not die unseen.
pub mod shutdown;
