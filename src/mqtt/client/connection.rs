//! One connection to a broker: opening it, and reading and writing its packets.

use std::io;
use std::time::Duration;

use ledge_egress::{
    Egress, EgressContent, EgressDestination, EgressError, EgressPurpose, EgressReader, EgressWriteError, EgressWriter,
};

use super::codec::{self, CodecError};
use super::framing::PacketFraming;
use super::packet::{ConnAck, Connect, IncomingPacket, MqttVersion, OutgoingPacket, ReasonCode};

/// The reason why a connection could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("the broker refuses the connection: {reason}{}", quoted(text.as_deref()))]
    Refused {
        reason: ReasonCode,
        /// The broker's explanation.
        text: Option<String>,
    },
    #[error("the broker closed the connection: {reason}{}", quoted(text.as_deref()))]
    Disconnected {
        reason: ReasonCode,
        /// The broker's explanation.
        text: Option<String>,
    },
    #[error("the connection to the broker ended")]
    Ended,
    /// The connection ended without an answer to a CONNECT in MQTT 5, and the version is not fixed.
    #[error("the connection to the broker ended: if it speaks MQTT 3.1.1 only, set mqtt.protocol = \"3.1.1\"")]
    EndedBeforeAccepted,
    #[error("{0}")]
    NotPermitted(String),
    #[error("the connection to the broker broke: {0}")]
    Broke(#[from] io::Error),
    #[error("the broker did not respond within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("protocol error: {0}")]
    Protocol(#[from] CodecError),
    #[error("protocol error: the first packet of the broker is not a CONNACK")]
    NotAccepted,
}

fn quoted(text: Option<&str>) -> String {
    text.map(|text| format!(", {text:?}")).unwrap_or_default()
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct ConnectionReader {
    link: EgressReader,
    framing: PacketFraming,
    received: u64,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct ConnectionWriter {
    link: EgressWriter,
    version: MqttVersion,
    /// The bytes that were put, sent or not.
    put: u64,
}

/// An accepted connection.
#[derive(Debug)]
pub struct BrokerConnection {
    pub reader: ConnectionReader,
    pub writer: ConnectionWriter,
    pub version: MqttVersion,
    /// The broker's answer to CONNECT.
    pub accepted: ConnAck,
}

impl BrokerConnection {
    /// Connects and waits until the broker accepts, so long at most. Messages in packets above `max_packet` bytes lose
    /// their payload.
    pub async fn open(
        egress: &Egress,
        to: &EgressDestination,
        version: MqttVersion,
        connect: Connect,
        max_packet: usize,
        timeout: Duration,
    ) -> Result<Self, ConnectionError> {
        let (reader, writer) = egress.connect(to, EgressPurpose::Mqtt).await?;
        let mut reader =
            ConnectionReader { link: reader, framing: PacketFraming::new(version, max_packet), received: 0 };
        let mut writer = ConnectionWriter { link: writer, version, put: 0 };
        writer.put(EgressContent::Protocol, &OutgoingPacket::Connect(connect))?;
        let accept = async {
            writer.flush().await?;
            reader.next().await
        };
        match tokio::time::timeout(timeout, accept).await {
            Err(_) => Err(ConnectionError::Silent(timeout)),
            Ok(Ok(IncomingPacket::ConnAck(accepted))) if !accepted.reason.is_failure() => {
                Ok(Self { reader, writer, version, accepted })
            }
            Ok(Ok(IncomingPacket::ConnAck(ConnAck { reason, text, .. }))) => {
                Err(ConnectionError::Refused { reason, text })
            }
            Ok(Ok(_)) => Err(ConnectionError::NotAccepted),
            Ok(Err(error)) => Err(error),
        }
    }
}

impl ConnectionReader {
    /// The next packet. The future may be dropped at any time: nothing is lost.
    pub async fn next(&mut self) -> Result<IncomingPacket, ConnectionError> {
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

    /// The next packet, if it has arrived.
    pub fn next_buffered(&mut self) -> Result<Option<IncomingPacket>, ConnectionError> {
        Ok(self.framing.next()?)
    }

    /// From now on skips the payload of messages in packets of more than this many bytes, including one that has begun.
    pub fn set_max_packet(&mut self, bytes: usize) {
        self.framing.set_max_packet(bytes);
    }

    /// Acknowledges received bytes in TCP at once, for when nothing is sent soon: until then a broker with Nagle's
    /// algorithm, as mosquitto is by default, sends nothing more.
    pub fn acknowledge(&self) {
        self.link.acknowledge();
    }

    /// The number of bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }
}

impl ConnectionWriter {
    /// Puts a packet, which the next [`Self::flush`] sends.
    pub fn put(&mut self, content: EgressContent, packet: &OutgoingPacket) -> Result<(), ConnectionError> {
        let (version, before) = (self.version, self.link.queued());
        self.link.put(content, |buffer| codec::encode(version, packet, buffer)).map_err(|error| match error {
            EgressWriteError::Write(error) => error.into(),
            refused @ EgressWriteError::NotPermitted { .. } => ConnectionError::NotPermitted(refused.to_string()),
        })?;
        self.put += (self.link.queued() - before) as u64;
        Ok(())
    }

    /// The size of a packet, in bytes.
    pub fn size(&self, packet: &OutgoingPacket) -> usize {
        codec::encoded_size(self.version, packet)
    }

    /// The number of bytes sent.
    pub fn sent(&self) -> u64 {
        self.put - self.link.queued() as u64
    }

    /// The number of bytes that are not sent yet.
    pub fn queued(&self) -> usize {
        self.link.queued()
    }

    /// Sends the packets that were put. The future may be dropped at any time: the next one sends the rest.
    pub async fn flush(&mut self) -> Result<(), ConnectionError> {
        Ok(self.link.flush().await?)
    }

    /// Closes the connection in order, as far as the broker cooperates.
    pub async fn close(self) {
        self.link.close().await;
    }
}
