//! A blocking connection to a daemon for raw bytes: a measurement must cost next to nothing itself.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Context;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    pub fn open(url: &str, read_timeout: Duration) -> anyhow::Result<Self> {
        Self::connect(url, read_timeout).with_context(|| format!("no daemon answers at {url}"))
    }

    fn connect(url: &str, read_timeout: Duration) -> io::Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            let stream = UnixStream::connect(path.trim_start_matches("//"))?;
            stream.set_read_timeout(Some(read_timeout))?;
            return Ok(Self { stream: RawStream::Unix(stream), host: "localhost".to_owned() });
        }

        let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let stream = connect(&host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(read_timeout))?;
        Ok(Self { stream: RawStream::Tcp(stream), host })
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
