//! Faults on demand, for tests of what the daemon does about them. Only in builds with the feature `fault-injection`.

use ledge_base::sys;
use ledge_base::tensor::Tensor;

use crate::lane::Lane;

/// The first bytes of an input that asks for a fault; the next one says which.
pub const MAGIC: &[u8; 7] = b"!FAULT:";

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
    /// Ends in order, without an answer.
    Exit,
}

impl Fault {
    /// The fault that the first input asks for.
    pub fn wanted(inputs: &[Tensor]) -> Option<Self> {
        let rest =
            inputs.first()?.data().windows(MAGIC.len() + 1).take(5).find_map(|window| window.strip_prefix(MAGIC))?;
        Some(match rest.first()? {
            b's' => Self::Segv,
            b'f' => Self::Fpe,
            b'a' => Self::Abort,
            b'l' => Self::Loop,
            b'm' => Self::Memory,
            b'o' => Self::StackOverflow,
            b'c' => Self::Scribble,
            b'n' => Self::Nonsense,
            b'x' => Self::Exit,
            _ => return None,
        })
    }

    /// Goes wrong.
    pub fn happen(self, lane: &Lane, number: u32) {
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
            Self::Scribble => lane.scribble(0xa5),
            Self::Nonsense => {
                let _ = lane.reply(number, lane.answer(), &vec![255_u8; 64]);
            }
            Self::Exit => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
        }
    }
}

#[expect(unconditional_recursion, reason = "that is the fault")]
fn overflow(depth: usize) -> [usize; 1024] {
    let mut frame = [depth; 1024];
    frame[std::hint::black_box(depth) % 1024] += overflow(depth + 1)[3];
    frame
}
