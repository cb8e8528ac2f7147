//! The system calls of a sandboxed process, on `x86_64` and aarch64.
//!
//! Measured with strace over loads and runs of all models in both runtimes, with one and two threads, with and without
//! OpenVINO's cache. Added are those that need another CPU (AMX, SVE), an older C library, or an error that did not
//! happen.

use crate::rules::{ArgumentComparison, ArgumentCondition, ArgumentWidth, FilterRules};

/// The one niceness that a thread of the process may give itself. It then gets a third of the CPU time of the other
/// threads, where they want the same core, and they do not wait for it.
pub const BACKGROUND_NICENESS: i32 = 5;

/// Allowed with any arguments, besides the calls that open files.
const ALWAYS: &[i64] = &[
    // Memory. OpenVINO generates code, so PROT_EXEC is allowed; `mbind` places it on a node of this machine.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mbind,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, and waiting for them. `clone`, below, makes only threads.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_membarrier,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    // Signals of this process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Facts about this process and the machine.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Descriptors that it has: the socket to Ledge, shared memory, files that it was allowed to open. No call makes a
    // socket, so these reach none but those that Ledge passed.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The same on `x86_64` by their old names.
#[cfg(target_arch = "x86_64")]
const ALWAYS_OLD: &[i64] = &[libc::SYS_dup2, libc::SYS_getrlimit, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_OLD: &[i64] = &[libc::SYS_getrlimit];

/// Allowed in a process that opens files, besides [`OPEN`]. Landlock decides which; it does not decide on modes,
/// owners, times and attributes of files, so no call that changes those is here.
const FILES: &[i64] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_unlinkat,
];

/// The same on `x86_64` by their old names.
#[cfg(target_arch = "x86_64")]
const FILES_OLD: &[i64] = &[
    libc::SYS_access,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OLD: &[i64] = &[];

/// The calls that open a file, and the place of their flags.
#[cfg(target_arch = "x86_64")]
const OPEN: &[(i64, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OPEN: &[(i64, u8)] = &[(libc::SYS_openat, 2)];

/// Flags of an open with which it may succeed: (mask, bits). Landlock before Linux 6.2 does not see that a file is
/// truncated, only whether it is opened to read or to write: so a file is truncated only where it is opened to write.
/// The fourth access mode, neither of both, needs no right of Landlock at all, and could truncate any file of this
/// user.
const OPEN_FLAGS: [(libc::c_int, libc::c_int); 3] = [
    (libc::O_ACCMODE | libc::O_TRUNC, libc::O_RDONLY),
    (libc::O_ACCMODE, libc::O_WRONLY),
    (libc::O_ACCMODE, libc::O_RDWR),
];

/// Bits of `clone` that make no thread of this process.
const CLONE_BEYOND: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS
    | libc::CLONE_PIDFD
    | libc::CLONE_PTRACE
    | libc::CLONE_VFORK;

/// Commands of `fcntl`. Not those that make the kernel send signals to a process of the caller's choice (`F_SETOWN`,
/// `F_SETSIG`, `F_SETLEASE`, `F_NOTIFY`).
const FCNTL_COMMANDS: [libc::c_int; 7] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GET_SEALS,
];

/// Commands of `ioctl` that Rust's standard library uses on sockets and files.
const IOCTL_COMMANDS: [libc::c_ulong; 2] = [libc::FIOCLEX, libc::FIONBIO];

/// Options of `prctl`: names of threads and of memory, and the widths of vectors (SVE, SME).
const PRCTL_OPTIONS: [libc::c_int; 5] =
    [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, PR_SVE_GET_VL, PR_SME_GET_VL];
const PR_SVE_GET_VL: libc::c_int = 51;
const PR_SME_GET_VL: libc::c_int = 64;

/// Options of a socket that may be set: its timeouts. They may be read, and the last error.
const SOCKET_OPTIONS: [libc::c_int; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];

/// Functions of `arch_prctl`: the tiles of AMX have to be asked for, and OpenVINO does.
#[cfg(target_arch = "x86_64")]
const AMX_FUNCTIONS: [u64; 3] = [0x1021, 0x1022, 0x1023];

/// The permitted system calls of a sandboxed process with this process id.
pub(crate) fn allowed(own: u32, opens_files: bool) -> FilterRules {
    let own = u64::from(own);
    let mut rules = FilterRules::new();
    let always = [ALWAYS, ALWAYS_OLD].into_iter();
    let files = [FILES, FILES_OLD].into_iter().filter(|_| opens_files);
    rules.extend(always.chain(files).flatten().map(|call| (*call, Vec::new())));
    // Answered by the filters before this one.
    rules.extend(missing());
    if opens_files {
        rules.extend(pretended());
        rules.extend(OPEN.iter().map(|(call, flags)| {
            let with =
                |(mask, set)| vec![argument(*flags, ArgumentComparison::Masked { mask: bits(mask), bits: bits(set) })];
            (*call, OPEN_FLAGS.map(with).into())
        }));
    }

    let threads_only =
        ArgumentComparison::Masked { mask: bits(libc::CLONE_THREAD | CLONE_BEYOND), bits: bits(libc::CLONE_THREAD) };
    rules.insert(libc::SYS_clone, vec![vec![argument(0, threads_only)]]);

    // Its own process: an abort, the end of it. Other ids are of other processes.
    rules.insert(libc::SYS_kill, vec![vec![argument(0, ArgumentComparison::Equal(own))]]);
    rules.insert(libc::SYS_tgkill, vec![vec![argument(0, ArgumentComparison::Equal(own))]]);
    // Pinning of the calling thread. Any other id could be a thread of Ledge.
    rules.insert(libc::SYS_sched_setaffinity, vec![vec![argument(0, ArgumentComparison::Equal(0))]]);
    // The calling thread may give way to the others of its process.
    let niceness = argument(2, ArgumentComparison::Equal(bits(BACKGROUND_NICENESS)));
    let own_thread = [0, 1].map(|index| argument(index, ArgumentComparison::Equal(0)));
    rules.insert(libc::SYS_setpriority, vec![own_thread.into_iter().chain([niceness]).collect()]);
    // Limits may be read, not set.
    let no_new_limit = ArgumentCondition { index: 2, size: ArgumentWidth::Bits64, is: ArgumentComparison::Equal(0) };
    let own_limits = [0, own].map(|process| vec![argument(0, ArgumentComparison::Equal(process)), no_new_limit]);
    rules.insert(libc::SYS_prlimit64, own_limits.into());

    rules.insert(libc::SYS_fcntl, one_of(1, FCNTL_COMMANDS.map(bits)));
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTL_COMMANDS));
    rules.insert(libc::SYS_prctl, one_of(0, PRCTL_OPTIONS.map(bits)));
    let of_socket = |option| {
        vec![
            argument(1, ArgumentComparison::Equal(bits(libc::SOL_SOCKET))),
            argument(2, ArgumentComparison::Equal(bits(option))),
        ]
    };
    rules.insert(libc::SYS_setsockopt, SOCKET_OPTIONS.map(of_socket).into());
    // Not SO_PEERPIDFD, a handle of the process at the other end.
    let readable = SOCKET_OPTIONS.into_iter().chain([libc::SO_ERROR]);
    rules.insert(libc::SYS_getsockopt, readable.map(of_socket).collect());

    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_arch_prctl, one_of(0, AMX_FUNCTIONS));
    rules
}

/// Denied as if the kernel did not have them: the C library then uses `clone`, and a filter can check its flags.
pub(crate) fn missing() -> FilterRules {
    FilterRules::from([(libc::SYS_clone3, Vec::new())])
}

/// Reported as done, without doing anything. OpenVINO makes each file of its cache read-only, and treats an error as a
/// failure of the load. A sandboxed process must not change the modes of files: Landlock does not restrict that, and
/// Ledge's keys have the same owner.
pub(crate) fn pretended() -> FilterRules {
    FilterRules::from([(libc::SYS_fchmodat, Vec::new())])
}

fn one_of<const N: usize>(index: u8, values: [u64; N]) -> Vec<Vec<ArgumentCondition>> {
    values.map(|value| vec![argument(index, ArgumentComparison::Equal(value))]).into()
}

/// A condition on an argument that the kernel reads as an integer of 32 bits.
fn argument(index: u8, is: ArgumentComparison) -> ArgumentCondition {
    ArgumentCondition { index, size: ArgumentWidth::Bits32, is }
}

/// A constant as an argument has it.
fn bits(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{self, tests::verdict};

    const OWN: u32 = 4711;
    const ALLOW: u32 = 0x7fff_0000;
    const DENY: u32 = 0x0005_0000 | 1;

    fn allows(opens_files: bool, call: i64, arguments: &[u64]) -> bool {
        let program =
            filter::allow_only(allowed(OWN, opens_files), std::env::consts::ARCH.try_into().unwrap()).unwrap();
        match verdict(&program, call, arguments) {
            ALLOW => true,
            DENY => false,
            other => panic!("call {call} has the verdict {other:#x}"),
        }
    }

    /// Calls that reach beyond the process.
    const DENIED: &[i64] = &[
        // Other processes.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_process_mrelease,
        libc::SYS_kcmp,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_send_signal,
        libc::SYS_tkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_ioprio_set,
        libc::SYS_get_robust_list,
        libc::SYS_setpgid,
        libc::SYS_setsid,
        // Programs and processes.
        libc::SYS_execve,
        libc::SYS_execveat,
        // Connections.
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendmmsg,
        // Privileges and the system.
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setresuid,
        libc::SYS_setgroups,
        libc::SYS_capset,
        libc::SYS_setrlimit,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_mount_setattr,
        libc::SYS_seccomp,
        libc::SYS_landlock_restrict_self,
        libc::SYS_personality,
        libc::SYS_reboot,
        libc::SYS_sethostname,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_adjtimex,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_kexec_load,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_swapon,
        // Parts of the kernel with a history of holes.
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_io_setup,
        libc::SYS_fanotify_init,
        libc::SYS_inotify_init1,
        libc::SYS_vmsplice,
        libc::SYS_splice,
        libc::SYS_memfd_create,
        libc::SYS_memfd_secret,
        libc::SYS_shmget,
        libc::SYS_shmat,
        libc::SYS_msgget,
        libc::SYS_semget,
        libc::SYS_mq_open,
        libc::SYS_timer_create,
        // Files, besides those that Landlock decides on.
        libc::SYS_openat2,
        libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
        libc::SYS_chdir,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_mknodat,
        libc::SYS_fchmod,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_setxattr,
        libc::SYS_fsetxattr,
        libc::SYS_truncate,
        libc::SYS_umask,
    ];

    #[test]
    fn no_call_that_reaches_beyond_the_process_is_allowed_whatever_its_arguments() {
        for call in DENIED {
            for value in [0, 1, u64::from(OWN), u64::MAX] {
                assert!(!allows(true, *call, &[value; 6]), "call {call} with {value}");
            }
        }
        // Calls that no kernel has yet.
        assert!((470..1024).all(|call| !allows(true, call, &[0; 6])));
        #[cfg(target_arch = "x86_64")]
        for call in [libc::SYS_fork, libc::SYS_vfork, libc::SYS_chmod, libc::SYS_chown, libc::SYS_link, libc::SYS_mknod]
        {
            assert!(!allows(true, call, &[0; 6]), "call {call}");
        }
    }

    #[test]
    fn a_clone_is_a_thread_of_this_process_and_nothing_else() {
        // As glibc makes threads.
        let thread = 0x003d_0f00;
        assert!(allows(false, libc::SYS_clone, &[thread]));
        for beyond in [
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWNET,
            libc::CLONE_NEWNS,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWCGROUP,
            libc::CLONE_VFORK,
            libc::CLONE_PTRACE,
            libc::CLONE_PIDFD,
        ] {
            assert!(!allows(false, libc::SYS_clone, &[thread | bits(beyond)]), "{beyond:#x}");
        }
        assert!(!allows(false, libc::SYS_clone, &[bits(libc::SIGCHLD)]));
        assert!(!allows(false, libc::SYS_clone, &[bits(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD)]));
    }

    #[test]
    fn other_processes_and_new_limits_are_told_apart_by_the_arguments() {
        let own = u64::from(OWN);
        for call in [libc::SYS_kill, libc::SYS_tgkill] {
            assert!(allows(false, call, &[own, 6]));
            for other in [0, 1, own + 1, u64::from(u32::MAX), (-i64::from(OWN)).cast_unsigned()] {
                assert!(!allows(false, call, &[other, 6]), "call {call} to {other}");
            }
        }
        assert!(allows(false, libc::SYS_sched_setaffinity, &[0, 8, 1]));
        assert!(!allows(false, libc::SYS_sched_setaffinity, &[1, 8, 1]));
        assert!(allows(false, libc::SYS_setpriority, &[0, 0, bits(BACKGROUND_NICENESS)]));
        for other in [[0, 1, 5], [1, 0, 5], [0, 0, 0], [0, 0, 4], [0, 0, bits(-20)]] {
            assert!(!allows(false, libc::SYS_setpriority, &other), "{other:?}");
        }

        assert!(allows(false, libc::SYS_prlimit64, &[0, 3, 0, 0x7fff_0000_0000]));
        assert!(allows(false, libc::SYS_prlimit64, &[own, 3, 0, 1]));
        assert!(!allows(false, libc::SYS_prlimit64, &[own + 1, 3, 0, 1]));
        // A pointer with a lower half of zero is not a null pointer.
        assert!(!allows(false, libc::SYS_prlimit64, &[0, 3, 0x7fff_0000_0000, 0]));
    }

    #[test]
    fn options_and_commands_are_those_listed() {
        let allowed_commands = |call, index: usize, range: std::ops::Range<u64>| -> Vec<u64> {
            let with = |value| {
                let mut arguments = [0; 6];
                arguments[index] = value;
                arguments
            };
            range.filter(|value| allows(false, call, &with(*value))).collect()
        };
        assert_eq!(allowed_commands(libc::SYS_fcntl, 1, 0..1100), [0, 1, 2, 3, 4, 1030, 1034]);
        assert_eq!(allowed_commands(libc::SYS_prctl, 0, 0..100), [15, 16, 51, 64]);
        assert_eq!(allowed_commands(libc::SYS_ioctl, 1, 0x5400..0x5500), [0x5421, 0x5451]);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(allowed_commands(libc::SYS_arch_prctl, 0, 0x1000..0x6000), [0x1021, 0x1022, 0x1023]);
        let socket = bits(libc::SOL_SOCKET);
        let options = |call| (0..100).filter(|option| allows(false, call, &[3, socket, *option])).collect::<Vec<_>>();
        assert_eq!(options(libc::SYS_setsockopt), [20, 21]);
        assert_eq!(options(libc::SYS_getsockopt), [4, 20, 21]);
        assert!(!allows(false, libc::SYS_setsockopt, &[3, 0, 20]));
    }

    #[test]
    fn a_file_is_truncated_only_where_it_is_opened_to_write() {
        for (call, place) in OPEN {
            let opens = |flags: libc::c_int| {
                let mut arguments = [0; 6];
                arguments[usize::from(*place)] = bits(flags);
                allows(true, *call, &arguments)
            };
            for access in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
                assert!(opens(access | libc::O_CLOEXEC | libc::O_CREAT), "{access}");
                assert_eq!(opens(access | libc::O_TRUNC | libc::O_CREAT), access != libc::O_RDONLY, "{access}");
            }
            assert!(!opens(libc::O_ACCMODE) && !opens(libc::O_ACCMODE | libc::O_TRUNC));
        }
    }

    #[test]
    fn a_process_that_opens_no_file_has_no_call_for_it() {
        let open = OPEN.iter().map(|(call, _)| call);
        for call in FILES.iter().chain(FILES_OLD).chain(open) {
            assert!(allows(true, *call, &[0; 6]));
            assert!(!allows(false, *call, &[0; 6]));
        }
        assert!(allows(false, libc::SYS_read, &[0; 6]));
        assert!(!allows(false, libc::SYS_fchmodat, &[0; 6]));
    }
}
