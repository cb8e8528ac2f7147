//! A blocking connection to a daemon, for bytes as they are: what measures a daemon must cost next to nothing itself.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::daemon_connection::{CONNECT, DaemonError, Target, target};

/// A connection to a daemon over TCP or a Unix socket.
#[derive(Debug)]
pub struct RawConnection {
    stream: Stream,
    host: String,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RawConnection {
    /// Connects to `http://HOST:PORT` or `unix:PATH`. A read that gets nothing for `patience` fails.
    pub fn open(url: &str, patience: Duration) -> Result<Self, DaemonError> {
        let refused = |error| DaemonError::connecting(url, error);
        match target(url)? {
            Target::Tcp { authority } => {
                let stream = connect(&authority).map_err(refused)?;
                stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(patience))).map_err(refused)?;
                Ok(Self { stream: Stream::Tcp(stream), host: authority })
            }
            Target::Tls { .. } => Err(DaemonError::Measured { url: url.to_owned() }),
            Target::Unix { path } => {
                let stream = UnixStream::connect(path).map_err(refused)?;
                stream.set_read_timeout(Some(patience)).map_err(refused)?;
                Ok(Self { stream: Stream::Unix(stream), host: "localhost".to_owned() })
            }
        }
    }

    /// What belongs into the header `Host`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The process that listens, where the system tells: on a Unix socket.
    pub fn peer_pid(&self) -> Option<u32> {
        let Stream::Unix(stream) = &self.stream else { return None };
        let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }
}

/// The first address of a name that takes the connection.
fn connect(authority: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for RawConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for RawConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
