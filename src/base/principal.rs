//! Who asked: the caller of a request, by the credential that was presented, else as far as the transport can tell.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// A peer over TCP. The port is left out: a client has many.
    Peer(IpAddr),
    /// A process behind the Unix socket, by its user id (`SO_PEERCRED`).
    User(u32),
    /// Who presented an API key: the key's name.
    Key(Arc<str>),
    /// Who presented a client certificate: the name that it is listed under.
    Certificate(Arc<str>),
    /// A client behind an MQTT broker. A broker does not tell who published a message: the name is the topic that the
    /// client wants its answer on, or the one that a device publishes to.
    Mqtt(Arc<str>),
    /// The daemon itself, or a command line on this box.
    Local,
    /// Several callers, who are too many to be told apart.
    Others,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(address) => write!(f, "ip:{address}"),
            Self::User(uid) => write!(f, "uid:{uid}"),
            Self::Key(name) => write!(f, "key:{name}"),
            Self::Certificate(name) => write!(f, "cert:{name}"),
            Self::Mqtt(topic) => write!(f, "mqtt:{topic}"),
            Self::Local => f.write_str("local"),
            Self::Others => f.write_str("others"),
        }
    }
}
