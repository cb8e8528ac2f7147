//! The signals that end a verb that must clean up first, such as restore the terminal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, SIGTERM and SIGHUP. From now on they no longer end the process by themselves.
pub struct StopSignals([Signal; 3]);

impl StopSignals {
    pub fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    /// Waits for the next of them.
    pub async fn requested(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
