//! Models as they are served: on disk, loaded, scheduled, and one call to them.
#![forbid(unsafe_code)]

/// All models on one budget of cores: queues, batches, and a worker a core.
pub mod scheduling;
/// The model repository, on disk and loaded. A live version goes only when its replacement is ready.
pub mod repository;
/// One inference, whatever the protocol. Each call is counted once and audited once.
pub mod serving;
