//! Ledge turns a CPU-only server into an inference appliance.
pub mod audit_event;
pub mod clock;
pub mod durable;
pub mod inference;
pub mod names;
pub mod principal;
pub mod readiness;
pub mod serving;
pub mod shutdown;
pub mod tensor;
