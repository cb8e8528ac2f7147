//! Namespaces, and the capabilities that come with them.

use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::report::MechanismState;

/// Moves this process into new user, network and IPC namespaces, in this order, as far as the system allows them.
///
/// Not into a namespace of control groups, because the process reads its CPU limits from its group, nor into one of
/// mounts or processes, because Landlock and the list of system calls deny the same.
pub(crate) fn unshare() -> [MechanismState; 3] {
    let extents = [
        (UnshareFlags::NEWUSER, "no rights over anything outside"),
        (UnshareFlags::NEWNET, "no network interface"),
        (UnshareFlags::NEWIPC, "no shared memory of others"),
    ];
    extents.map(|(namespace, extent)| {
        #[expect(deprecated, reason = "the safe form; only shared file descriptors, which stay, make the other unsafe")]
        let done = rustix::thread::unshare(namespace);
        MechanismState::after(done, extent)
    })
}

/// Drops all capabilities: those of root, and those within the new user namespace. A service manager that gave none may
/// deny the call that drops them.
pub(crate) fn drop_capabilities() -> MechanismState {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let dropped = match rustix::thread::capabilities(None) {
        Ok(sets) if sets == none => Ok(()),
        _ => rustix::thread::set_capabilities(None, none),
    };
    MechanismState::after(dropped, "none, and no way to any")
}
