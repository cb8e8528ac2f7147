//! A blocking connection to a daemon for raw bytes: a measurement must cost next to nothing itself.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::daemon_connection::{CONNECT_TIMEOUT, DaemonError, Target, target};

/// A connection to a daemon over TCP or a Unix socket.
#[derive(Debug)]
pub struct RawConnection {
    stream: RawStream,
    host: String,
}

#[derive(Debug)]
enum RawStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RawConnection {
    /// Connects to `http://HOST:PORT` or `unix:PATH`. A read fails after `read_timeout` without bytes.
    pub fn open(url: &str, read_timeout: Duration) -> Result<Self, DaemonError> {
        let refused = |error| DaemonError::connecting(url, error);
        match target(url)? {
            Target::Tcp { authority } => {
                let stream = connect(&authority).map_err(refused)?;
                stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(read_timeout))).map_err(refused)?;
                Ok(Self { stream: RawStream::Tcp(stream), host: authority })
            }
            Target::Tls { .. } => Err(DaemonError::Measured { url: url.to_owned() }),
            Target::Unix { path } => {
                let stream = UnixStream::connect(path).map_err(refused)?;
                stream.set_read_timeout(Some(read_timeout)).map_err(refused)?;
                Ok(Self { stream: RawStream::Unix(stream), host: "localhost".to_owned() })
            }
        }
    }

    /// The value of the header `Host`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The process id of the listener, which the system reports only for a Unix socket.
    pub fn peer_pid(&self) -> Option<u32> {
        let RawStream::Unix(stream) = &self.stream else { return None };
        let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }
}

/// Connects to the first address of a name that accepts the connection.
fn connect(authority: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for RawConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            RawStream::Tcp(stream) => stream.read(buffer),
            RawStream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for RawConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.stream {
            RawStream::Tcp(stream) => stream.write(bytes),
            RawStream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
