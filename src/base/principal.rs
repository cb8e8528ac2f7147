//! The caller of a request, by its credential, or else by its transport.

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
    /// The holder of an API key, by the key's name.
    Key(Arc<str>),
    /// The holder of a client certificate, by the name that it is listed under.
    Certificate(Arc<str>),
    /// A person who signed in at the console with a code of this box, by the name that the code was made for.
    Person(Arc<str>),
    /// A client behind an MQTT broker. A broker does not report the publisher of a message, so the name is the response
    /// topic of the client, or the topic that a device publishes to.
    Mqtt(Arc<str>),
    /// A camera that this box watches by itself, by its name.
    Camera(Arc<str>),
    /// A folder that this box watches for documents, by its name.
    Inbox(Arc<str>),
    /// The daemon itself, or a command line on this box.
    Local,
    /// Several callers, when there are too many to count apart.
    Others,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(address) => write!(f, "ip:{address}"),
            Self::User(uid) => write!(f, "uid:{uid}"),
            Self::Key(name) => write!(f, "key:{name}"),
            Self::Certificate(name) => write!(f, "cert:{name}"),
            Self::Person(name) => write!(f, "person:{name}"),
            Self::Mqtt(topic) => write!(f, "mqtt:{topic}"),
            Self::Camera(name) => write!(f, "camera:{name}"),
            Self::Inbox(name) => write!(f, "inbox:{name}"),
            Self::Local => f.write_str("local"),
            Self::Others => f.write_str("others"),
        }
    }
}
