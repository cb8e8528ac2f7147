//! What a process that runs for years has: an orderly end, a sign that it is ready, and a way to record what is worth
//! proving later.
#![forbid(unsafe_code)]

/// Tasks that do not die unseen.
pub mod shutdown;
/// Ready when the last latch is dropped.
pub mod readiness;
/// What is worth proving later. Recording never blocks.
pub mod audit_event;
/// Work off the async threads, in turns.
pub mod off_thread;
