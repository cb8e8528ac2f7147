//! The sandbox of a child on this machine, for findings.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ledge_base::telemetry::system::MachineMemory;
use ledge_sandbox::SandboxReport;

use crate::channel;
use crate::starter::{ChildStarter, SpawnVerb};
use crate::wire::{ChildMessage, ChildSetup};

/// The most bytes of a report.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// The longest time until a child has reported its sandbox. It takes some 20 ms.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a child without models, and returns the report about its sandbox. The child may read the runtimes in the
/// folder `runtimes`.
pub fn sandbox_report(starter: &ChildStarter, runtimes: &Path) -> io::Result<SandboxReport> {
    let (socket, other) = UnixStream::pair()?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    let mut process = starter.start(SpawnVerb::Runtime, other.into(), None)?;
    let memory_bytes = MachineMemory::limit_of_process();
    let setup = ChildSetup { runtimes: runtimes.to_owned(), memory_bytes, ..ChildSetup::default() };
    let report = channel::send(&socket, &setup).and_then(|()| channel::receive(&socket, REPORT_BYTES_MAX));
    // It ends with its socket too, but it has nothing to do any more.
    process.kill();
    let ended = process.wait();
    match report? {
        Some(ChildMessage::Sandboxed(report)) => Ok(report),
        Some(_) => Err(io::Error::other("it sent something else than its report")),
        None => Err(io::Error::other(format!("it ended without a report ({})", ended?))),
    }
}
