//! One connection to a broker: opened, accepted, and cut into packets.

use std::io;
use std::time::Duration;

use ledge_egress::{Content, Destination, Egress, EgressError, LinkReader, LinkWriter, Purpose, PutError};

use super::codec::{self, CodecError};
use super::framing::Framing;
use super::packet::{ConnAck, Connect, Incoming, Outgoing, Reason, Version};

/// A broker that does not answer a connection within this time never will.
const ACCEPT: Duration = Duration::from_secs(10);

/// Why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("the broker refuses the connection: {reason}{}", words(text.as_deref()))]
    Refused {
        reason: Reason,
        /// Why, in the broker's words.
        text: Option<String>,
    },
    #[error("the broker closed the connection: {reason}{}", words(text.as_deref()))]
    Disconnected {
        reason: Reason,
        /// Why, in the broker's words.
        text: Option<String>,
    },
    #[error("the connection to the broker ended")]
    Ended,
    /// The connection ended without a word when it was asked for in MQTT 5, and the version is not fixed.
    #[error("the connection to the broker ended: if it speaks MQTT 3.1.1 only, set mqtt.protocol = \"3.1.1\"")]
    EndedBeforeAccepted,
    #[error("{0}")]
    NotPermitted(String),
    #[error("the connection to the broker broke: {0}")]
    Broke(#[from] io::Error),
    #[error("the broker gives no sign of life")]
    Silent,
    #[error("the broker does not keep to the protocol: {0}")]
    Protocol(#[from] CodecError),
    /// The first packet was another than the answer to the connection.
    #[error("the broker does not keep to the protocol: it began with another packet than CONNACK")]
    NotAccepted,
}

fn words(text: Option<&str>) -> String {
    text.map(|text| format!(", {text:?}")).unwrap_or_default()
}

/// The way in.
#[derive(Debug)]
pub struct Reader {
    link: LinkReader,
    framing: Framing,
    received: u64,
}

/// The way out.
#[derive(Debug)]
pub struct Writer {
    link: LinkWriter,
    version: Version,
    /// Bytes taken, sent or not.
    taken: u64,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    pub reader: Reader,
    pub writer: Writer,
    pub version: Version,
    /// What the broker said to it.
    pub accepted: ConnAck,
}

impl Connection {
    /// Connects and waits until the broker accepts. Packets above `max_packet` bytes will be let go by.
    pub async fn open(
        egress: &Egress,
        to: &Destination,
        version: Version,
        connect: Connect,
        max_packet: usize,
    ) -> Result<Self, ConnectionError> {
        let (reader, writer) = egress.connect(to, Purpose::Mqtt).await?;
        let mut reader = Reader { link: reader, framing: Framing::new(version, max_packet), received: 0 };
        let mut writer = Writer { link: writer, version, taken: 0 };
        writer.put(Content::Protocol, &Outgoing::Connect(connect))?;
        let accept = async {
            writer.flush().await?;
            reader.next().await
        };
        match tokio::time::timeout(ACCEPT, accept).await {
            Err(_) => Err(ConnectionError::Silent),
            Ok(Ok(Incoming::ConnAck(accepted))) if !accepted.reason.is_failure() => {
                Ok(Self { reader, writer, version, accepted })
            }
            Ok(Ok(Incoming::ConnAck(ConnAck { reason, text, .. }))) => Err(ConnectionError::Refused { reason, text }),
            Ok(Ok(_)) => Err(ConnectionError::NotAccepted),
            Ok(Err(error)) => Err(error),
        }
    }
}

impl Reader {
    /// The next packet. May be dropped at any time: nothing is lost.
    pub async fn next(&mut self) -> Result<Incoming, ConnectionError> {
        loop {
            if let Some(packet) = self.framing.next()? {
                return Ok(packet);
            }
            match self.link.read(self.framing.buffer()).await? {
                0 => return Err(ConnectionError::Ended),
                read => self.received += read as u64,
            }
        }
    }

    /// The next packet, if it is here already.
    pub fn next_here(&mut self) -> Result<Option<Incoming>, ConnectionError> {
        Ok(self.framing.next()?)
    }

    /// From now on lets messages go by in packets of more than so many bytes, one that has begun included.
    pub fn set_max_packet(&mut self, bytes: usize) {
        self.framing.set_max_packet(bytes);
    }

    /// Acknowledges what has come at once, for when nothing is sent soon: a broker with Nagle's algorithm, as mosquitto is by
    /// default, sends nothing more before.
    pub fn acknowledge(&self) {
        self.link.acknowledge();
    }

    /// How many bytes have come.
    pub fn received(&self) -> u64 {
        self.received
    }
}

impl Writer {
    /// Takes a packet to be sent with the next [`Self::flush`].
    pub fn put(&mut self, content: Content, packet: &Outgoing) -> Result<(), ConnectionError> {
        let (version, before) = (self.version, self.link.queued());
        self.link.put(content, |buffer| codec::encode(version, packet, buffer)).map_err(|error| match error {
            PutError::Write(error) => error.into(),
            refused @ PutError::NotPermitted { .. } => ConnectionError::NotPermitted(refused.to_string()),
        })?;
        self.taken += (self.link.queued() - before) as u64;
        Ok(())
    }

    /// The size of a packet, in bytes.
    pub fn size(&self, packet: &Outgoing) -> usize {
        codec::encoded_size(self.version, packet)
    }

    /// How many bytes were sent.
    pub fn sent(&self) -> u64 {
        self.taken - self.link.queued() as u64
    }

    /// Bytes that are not sent yet.
    pub fn queued(&self) -> usize {
        self.link.queued()
    }

    /// Sends what was put. May be dropped at any time: the rest is sent with the next one.
    pub async fn flush(&mut self) -> Result<(), ConnectionError> {
        Ok(self.link.flush().await?)
    }

    /// Closes the connection in order, as far as the other side lets it.
    pub async fn close(self) {
        self.link.close().await;
    }
}
