//! No memory that is both written and executed, for a process that never generates code.

use rustix::io::Errno;

use crate::filter;
use crate::report::MechanismState;
use crate::rules::{ArgumentComparison, ArgumentCondition, ArgumentWidth, FilterRules};

/// `personality(0xffffffff)` only asks.
const PERSONALITY_QUERY: u64 = 0xffff_ffff;
const READ_IMPLIES_EXEC: u64 = 0x0040_0000;

/// The bit of a system call of the x32 interface, under which the same kernel has the same calls once more.
#[cfg(target_arch = "x86_64")]
const X32_BIT: i64 = 0x4000_0000;

/// Denies memory that is writable and executable to all threads of this process, to those that they start, and to the
/// programs that they execute. It cannot be undone.
///
/// As systemd's `MemoryDenyWriteExecute=`, and `execveat`, which starts a program from memory. Libraries can still be
/// loaded. A process that can write a file and map it as a library can still run that code, as under systemd.
pub fn deny_writable_code() -> MechanismState {
    let applied = filter::deny(denied(), Errno::PERM).and_then(|program| filter::install(&program));
    filter::state(applied, "no memory is both writable and executable")
}

fn denied() -> FilterRules {
    let (write, exec) = (bits(libc::PROT_WRITE), bits(libc::PROT_EXEC));
    let has = |index, mask| ArgumentCondition {
        index,
        size: ArgumentWidth::Bits32,
        is: ArgumentComparison::Masked { mask, bits: mask },
    };
    let asks = ArgumentCondition {
        index: 0,
        size: ArgumentWidth::Bits32,
        is: ArgumentComparison::NotEqual(PERSONALITY_QUERY),
    };
    let calls = [
        (libc::SYS_mmap, vec![vec![has(2, write | exec)]]),
        (libc::SYS_mprotect, vec![vec![has(2, exec)]]),
        (libc::SYS_pkey_mprotect, vec![vec![has(2, exec)]]),
        (libc::SYS_shmat, vec![vec![has(2, bits(libc::SHM_EXEC))]]),
        (libc::SYS_personality, vec![vec![has(0, READ_IMPLIES_EXEC), asks]]),
        (libc::SYS_execveat, Vec::new()),
    ];
    let rules = FilterRules::from(calls);
    #[cfg(target_arch = "x86_64")]
    let rules = rules.into_iter().flat_map(|(call, rule)| [(call, rule.clone()), (call | X32_BIT, rule)]).collect();
    rules
}

fn bits(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::verdict;

    #[test]
    fn memory_is_writable_or_executable_never_both() {
        let program = filter::deny(denied(), Errno::PERM).unwrap();
        let denies = |call, arguments: &[u64]| verdict(&program, call, arguments) == 0x0005_0001;
        let (read, write, exec) = (1, 2, 4);
        assert!(denies(libc::SYS_mmap, &[0, 4096, read | write | exec, 0x22]));
        assert!(denies(libc::SYS_mmap, &[0, 4096, write | exec, 0x22]));
        assert!(denies(libc::SYS_mprotect, &[4096, 4096, read | exec]));
        assert!(denies(libc::SYS_pkey_mprotect, &[4096, 4096, exec, 1]));
        assert!(denies(libc::SYS_shmat, &[1, 0, 0o100_000]));
        assert!(denies(libc::SYS_personality, &[READ_IMPLIES_EXEC]));
        assert!(denies(libc::SYS_execveat, &[3, 0, 0, 0, 0x1000]));
        // A library is mapped, data is made writable or read-only, the personality is read.
        assert!(!denies(libc::SYS_mmap, &[0, 4096, read | exec, 2]));
        assert!(!denies(libc::SYS_mmap, &[0, 4096, read | write, 0x22]));
        assert!(!denies(libc::SYS_mprotect, &[4096, 4096, read | write]));
        assert!(!denies(libc::SYS_shmat, &[1, 0, 0]));
        assert!(!denies(libc::SYS_personality, &[PERSONALITY_QUERY]));
        assert!(!denies(libc::SYS_execve, &[]));
        #[cfg(target_arch = "x86_64")]
        assert!(denies(libc::SYS_mmap | X32_BIT, &[0, 4096, write | exec]));
    }
}
