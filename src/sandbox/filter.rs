//! Filters of system calls, made of rules and given to the kernel.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::report::{MechanismState, refusal};
use crate::rules::{ArgumentComparison, ArgumentCondition, ArgumentWidth, FilterRules};
use crate::system_calls;

/// The reason why a filter is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("{0}")]
    Program(#[from] BackendError),
    #[error("{0}")]
    Kernel(#[from] Error),
}

impl FilterError {
    fn reason(&self) -> String {
        match self {
            Self::Kernel(Error::Prctl(error) | Error::Seccomp(error)) => match Errno::from_io_error(error) {
                Some(errno) => refusal(errno),
                None => error.to_string(),
            },
            Self::Kernel(error @ Error::ThreadSync(_)) => format!("another thread has a different filter: {error}"),
            error => error.to_string(),
        }
    }
}

/// Denies every system call of this process that a sandboxed process does not need.
pub(crate) fn allow_listed(opens_files: bool) -> MechanismState {
    let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let allowed = system_calls::allowed(own, opens_files);
    let count = allowed.len();
    let apply = || -> Result<(), FilterError> {
        // Where several filters deny a call, the error of the last one counts, so those that allow the rest come first,
        // and the list allows these calls.
        install(&deny(system_calls::missing(), Errno::NOSYS)?)?;
        install(&pretended()?)?;
        install(&allow_only(allowed, host()?)?)
    };
    state(apply(), &format!("{count} allowed"))
}

/// The state of a filter.
pub(crate) fn state(applied: Result<(), FilterError>, in_force: &str) -> MechanismState {
    match applied {
        Ok(()) => MechanismState::InForce(in_force.to_owned()),
        Err(error) => MechanismState::Absent(error.reason()),
    }
}

/// A filter that denies calls without a matching rule, with EPERM.
pub(crate) fn allow_only(rules: FilterRules, arch: TargetArch) -> Result<BpfProgram, FilterError> {
    let denied = SeccompAction::Errno(Errno::PERM.raw_os_error().unsigned_abs());
    Ok(SeccompFilter::new(compile(rules)?, denied, SeccompAction::Allow, arch)?.try_into()?)
}

/// A filter that denies calls with a matching rule.
pub(crate) fn deny(rules: FilterRules, error: Errno) -> Result<BpfProgram, FilterError> {
    let denied = SeccompAction::Errno(error.raw_os_error().unsigned_abs());
    Ok(SeccompFilter::new(compile(rules)?, SeccompAction::Allow, denied, host()?)?.try_into()?)
}

/// A filter that reports success without doing anything.
fn pretended() -> Result<BpfProgram, FilterError> {
    let done = SeccompAction::Errno(0);
    Ok(SeccompFilter::new(compile(system_calls::pretended())?, SeccompAction::Allow, done, host()?)?.try_into()?)
}

/// Gives a filter to the kernel, for all threads.
pub(crate) fn install(program: &BpfProgram) -> Result<(), FilterError> {
    Ok(seccompiler::apply_filter_all_threads(program)?)
}

fn host() -> Result<TargetArch, BackendError> {
    std::env::consts::ARCH.try_into()
}

fn compile(rules: FilterRules) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let rule = |arguments: Vec<ArgumentCondition>| {
        SeccompRule::new(arguments.into_iter().map(ArgumentCondition::condition).collect::<Result<_, _>>()?)
    };
    let chain = |(number, chain): (i64, Vec<Vec<ArgumentCondition>>)| {
        Ok((number, chain.into_iter().map(rule).collect::<Result<Vec<_>, BackendError>>()?))
    };
    rules.into_iter().map(chain).collect()
}

impl ArgumentCondition {
    fn condition(self) -> Result<SeccompCondition, BackendError> {
        let size = match self.size {
            ArgumentWidth::Bits32 => SeccompCmpArgLen::Dword,
            ArgumentWidth::Bits64 => SeccompCmpArgLen::Qword,
        };
        let (operator, value) = match self.is {
            ArgumentComparison::Equal(value) => (SeccompCmpOp::Eq, value),
            ArgumentComparison::NotEqual(value) => (SeccompCmpOp::Ne, value),
            ArgumentComparison::Masked { mask, bits } => (SeccompCmpOp::MaskedEq(mask), bits),
        };
        SeccompCondition::new(self.index, size, operator, value)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs a filter as the kernel would, and returns its verdict.
    pub(crate) fn verdict(program: &BpfProgram, call: i64, arguments: &[u64]) -> u32 {
        let arch: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        verdict_on(program, arch, call, arguments)
    }

    pub(crate) fn verdict_on(program: &BpfProgram, arch: u32, call: i64, arguments: &[u64]) -> u32 {
        let mut data = [0_u8; 64];
        data[..4].copy_from_slice(&u32::try_from(call).unwrap().to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (index, argument) in arguments.iter().enumerate() {
            data[16 + index * 8..24 + index * 8].copy_from_slice(&argument.to_ne_bytes());
        }

        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let step = &program[at];
            let jump = |taken| usize::from(if taken { step.jt } else { step.jf });
            at += 1;
            match step.code {
                // Load a word, AND, return, and the jumps.
                0x20 => accumulator = u32::from_ne_bytes(data[step.k as usize..][..4].try_into().unwrap()),
                0x54 => accumulator &= step.k,
                0x06 => return step.k,
                0x05 => at += step.k as usize,
                0x15 => at += jump(accumulator == step.k),
                0x25 => at += jump(accumulator > step.k),
                0x35 => at += jump(accumulator >= step.k),
                0x45 => at += jump(accumulator & step.k != 0),
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn a_call_by_the_numbers_of_another_architecture_ends_the_process() {
        let program = allow_only(system_calls::allowed(1, true), host().unwrap()).unwrap();
        let i386 = 0x4000_0003;
        assert_eq!(verdict_on(&program, i386, libc::SYS_read, &[]), 0x8000_0000);
    }

    #[test]
    fn a_filter_that_pretends_leaves_all_other_calls_to_the_list() {
        let (allow, success, no_such_call) = (0x7fff_0000, 0x0005_0000, 0x0005_0026);
        assert_eq!(verdict(&pretended().unwrap(), libc::SYS_fchmodat, &[]), success);
        assert_eq!(verdict(&pretended().unwrap(), libc::SYS_read, &[]), allow);
        let missing = deny(system_calls::missing(), Errno::NOSYS).unwrap();
        assert_eq!(verdict(&missing, libc::SYS_clone3, &[]), no_such_call);
        assert_eq!(verdict(&missing, libc::SYS_clone, &[]), allow);
    }

    #[test]
    fn a_filter_that_the_kernel_refuses_is_reported_with_the_reason() {
        assert!(state(Ok(()), "3 allowed").is_in_force());
        let refused = Err(Error::Seccomp(std::io::Error::from_raw_os_error(libc::EINVAL)).into());
        assert!(state(refused, "").to_string().starts_with("not in force: not available in this kernel"));
    }
}
