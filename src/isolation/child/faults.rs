//! Faults on demand, for tests of what the daemon does about them. Only in builds with the feature `fault-injection`.

use bytes::Bytes;
use ledge_base::sys;
use rustix::process::Signal;

use crate::lane::{Lane, LaneError};

/// The bytes at the begin of an input that ask for a fault; the next one says which.
pub const MAGIC: &[u8; 7] = b"!FAULT:";

/// A string of a `BYTES` tensor begins with its length.
const LENGTH_BYTES: usize = 4;

/// A way to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Segv,
    Fpe,
    Abort,
    /// A loop without end.
    Loop,
    /// Allocation without end.
    Memory,
    StackOverflow,
    /// Writes all over the shared memory, and answers then.
    Scribble,
    /// Answers with a head that is none.
    Nonsense,
    /// Ends as if somebody had killed it.
    Kill,
}

impl Fault {
    /// The fault that an input asks for.
    pub fn wanted<'b>(mut inputs: impl Iterator<Item = &'b Bytes>) -> Option<Self> {
        let kind = inputs.find_map(|input| {
            let begins = [0, LENGTH_BYTES].into_iter();
            begins.filter_map(|begin| input.get(begin..)?.strip_prefix(MAGIC)?.first()).next()
        })?;
        Some(match kind {
            b's' => Self::Segv,
            b'f' => Self::Fpe,
            b'a' => Self::Abort,
            b'l' => Self::Loop,
            b'm' => Self::Memory,
            b'o' => Self::StackOverflow,
            b'c' => Self::Scribble,
            b'n' => Self::Nonsense,
            b'k' => Self::Kill,
            _ => return None,
        })
    }

    /// Goes wrong. Returns where that leaves the process alive.
    pub fn happen(self, lane: &Lane, number: u32) -> Result<(), LaneError> {
        match self {
            Self::Segv => sys::raise(libc::SIGSEGV),
            Self::Fpe => sys::raise(libc::SIGFPE),
            Self::Abort => std::process::abort(),
            Self::Loop => loop {
                std::hint::spin_loop();
            },
            Self::Memory => {
                let mut all = Vec::new();
                loop {
                    all.push(vec![1_u8; 64 << 20]);
                }
            }
            Self::StackOverflow => drop(std::hint::black_box(overflow(1))),
            Self::Scribble => {
                lane.scribble(0xa5);
                return Ok(());
            }
            Self::Nonsense => lane.reply(number, lane.answer(), &vec![255_u8; 64])?,
            Self::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
            }
        }
        // The end is on its way, or the answer is there: this thread is of no use any more.
        loop {
            std::thread::park();
        }
    }
}

#[expect(unconditional_recursion, reason = "that is the fault")]
fn overflow(depth: usize) -> [usize; 1024] {
    let mut frame = [depth; 1024];
    frame[std::hint::black_box(depth) % 1024] += overflow(depth + 1)[3];
    frame
}
