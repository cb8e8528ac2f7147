//! Writes packets in MQTT 3.1.1 with rumqttc: without properties.

use bytes::BytesMut;
use rumqttc::mqttbytes::v4 as wire;
use rumqttc::mqttbytes::{Protocol, QoS};

use super::{CodecError, PACKET_MAX_BYTES};
use crate::client::packet::{Connect, MqttMessage, OutgoingPacket, PacketId, Qos};

pub(super) fn size(packet: &OutgoingPacket) -> usize {
    translate(packet).map_or(0, |packet| packet.size())
}

pub(super) fn write(packet: &OutgoingPacket, buffer: &mut BytesMut) -> Result<(), CodecError> {
    let Some(packet) = translate(packet) else { return Ok(()) };
    let unsendable = |reason: String| CodecError::Unsendable { packet: "packet", reason };
    buffer.reserve(packet.size().min(PACKET_MAX_BYTES));
    let written = if matches!(packet, wire::Packet::Connect(_)) {
        // rumqttc sets the flags of a CONNECT at a place counted from the buffer's beginning.
        let mut own = BytesMut::new();
        packet.write(&mut own, PACKET_MAX_BYTES).inspect(|_| buffer.extend_from_slice(&own))
    } else {
        packet.write(buffer, PACKET_MAX_BYTES)
    };
    written.map(drop).map_err(|error| unsendable(error.to_string()))
}

/// `None` for the packets that `write_short` writes.
fn translate(packet: &OutgoingPacket) -> Option<wire::Packet> {
    Some(match packet {
        OutgoingPacket::Connect(connect) => wire::Packet::Connect(self::connect(connect)),
        OutgoingPacket::Publish { message, packet_id, duplicate } => wire::Packet::Publish(wire::Publish {
            dup: *duplicate && message.qos == Qos::AtLeastOnce,
            qos: qos(message.qos),
            retain: message.retain,
            topic: message.topic.as_str().to_owned(),
            pkid: packet_id.map_or(0, PacketId::get),
            payload: message.payload.clone(),
        }),
        OutgoingPacket::Subscribe { packet_id, subscriptions } => {
            let filter = |path: &str, asked| wire::SubscribeFilter::new(path.to_owned(), qos(asked));
            let filters = subscriptions.iter().map(|one| filter(one.filter.as_str(), one.qos)).collect();
            wire::Packet::Subscribe(wire::Subscribe { pkid: packet_id.get(), filters })
        }
        OutgoingPacket::Unsubscribe { packet_id, filters } => wire::Packet::Unsubscribe(wire::Unsubscribe {
            pkid: packet_id.get(),
            topics: filters.iter().map(|filter| filter.as_str().to_owned()).collect(),
        }),
        OutgoingPacket::PubAck { .. } | OutgoingPacket::PingReq | OutgoingPacket::Disconnect { .. } => return None,
    })
}

fn connect(connect: &Connect) -> wire::Connect {
    wire::Connect {
        protocol: Protocol::V4,
        keep_alive: connect.keep_alive_s,
        client_id: connect.client_id.clone(),
        // One flag for both: drop the old session, and keep none afterwards.
        clean_session: connect.clean_start || connect.session_expiry_s == 0,
        last_will: connect.will.as_ref().map(will),
        login: connect.login.as_ref().map(|(user, password)| wire::Login::new(user, password)),
    }
}

fn will(message: &MqttMessage) -> wire::LastWill {
    wire::LastWill {
        topic: message.topic.as_str().to_owned(),
        message: message.payload.clone(),
        qos: qos(message.qos),
        retain: message.retain,
    }
}

fn qos(qos: Qos) -> QoS {
    match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
    }
}
