//! Writes packets in MQTT 5 with rumqttc.

use bytes::{Bytes, BytesMut};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5 as wire;

use super::{CodecError, PACKET_MAX_BYTES};
use crate::client::packet::{
    Connect, MessageProperties, MqttMessage, OutgoingPacket, PacketId, Qos, RetainHandling, Subscription,
};

/// The beginning of a shared subscription.
const SHARE_PREFIX: &str = "$share/";

pub(super) fn size(packet: &OutgoingPacket) -> usize {
    translate(packet).map_or(0, |packet| packet.size())
}

pub(super) fn write(packet: &OutgoingPacket, buffer: &mut BytesMut) -> Result<(), CodecError> {
    let Some(packet) = translate(packet) else { return Ok(()) };
    let unsendable = |reason: String| CodecError::Unsendable { packet: "packet", reason };
    match packet.size() {
        size if size > PACKET_MAX_BYTES => {
            return Err(unsendable(format!("it has {size} bytes; MQTT allows at most {PACKET_MAX_BYTES}")));
        }
        size => buffer.reserve(size),
    }
    let written = if matches!(packet, wire::Packet::Connect(..)) {
        // rumqttc sets the flags of a CONNECT at a place counted from the buffer's beginning.
        let mut own = BytesMut::new();
        packet.write(&mut own, None).inspect(|_| buffer.extend_from_slice(&own))
    } else {
        packet.write(buffer, None)
    };
    written.map(drop).map_err(|error| unsendable(error.to_string()))
}

/// `None` for the packets that `write_short` writes.
fn translate(packet: &OutgoingPacket) -> Option<wire::Packet> {
    Some(match packet {
        OutgoingPacket::Connect(connect) => self::connect(connect),
        OutgoingPacket::Publish { message, packet_id, duplicate } => wire::Packet::Publish(wire::Publish {
            // The DUP flag must be 0 with QoS 0.
            dup: *duplicate && message.qos == Qos::AtLeastOnce,
            qos: qos(message.qos),
            retain: message.retain,
            topic: Bytes::copy_from_slice(message.topic.as_str().as_bytes()),
            pkid: packet_id.map_or(0, PacketId::get),
            payload: message.payload.clone(),
            properties: Some(publish_properties(&message.properties)),
        }),
        OutgoingPacket::Subscribe { packet_id, subscriptions } => wire::Packet::Subscribe(wire::Subscribe {
            pkid: packet_id.get(),
            filters: subscriptions.iter().map(filter).collect(),
            properties: subscriptions.first().and_then(|first| first.id).map(|id| wire::SubscribeProperties {
                id: usize::try_from(id.get()).ok(),
                user_properties: Vec::new(),
            }),
        }),
        OutgoingPacket::Unsubscribe { packet_id, filters } => wire::Packet::Unsubscribe(wire::Unsubscribe {
            pkid: packet_id.get(),
            filters: filters.iter().map(|filter| filter.as_str().to_owned()).collect(),
            properties: None,
        }),
        OutgoingPacket::PubAck { .. } | OutgoingPacket::PingReq | OutgoingPacket::Disconnect { .. } => return None,
    })
}

fn connect(connect: &Connect) -> wire::Packet {
    let properties = wire::ConnectProperties {
        session_expiry_interval: (connect.session_expiry_s != 0).then_some(connect.session_expiry_s),
        // The protocol does not allow zero.
        receive_maximum: Some(connect.receive_maximum.max(1)),
        ..wire::ConnectProperties::new()
    };
    let packet = wire::Connect {
        keep_alive: connect.keep_alive_s,
        client_id: connect.client_id.clone(),
        clean_start: connect.clean_start,
        properties: Some(properties),
    };
    let login = connect.login.as_ref().map(|(user, password)| wire::Login::new(user, password));
    wire::Packet::Connect(packet, connect.will.as_ref().map(will), login)
}

fn will(message: &MqttMessage) -> wire::LastWill {
    let MessageProperties { response_topic, correlation_data, content_type, message_expiry_s, user } =
        &message.properties;
    wire::LastWill {
        topic: Bytes::copy_from_slice(message.topic.as_str().as_bytes()),
        message: message.payload.clone(),
        qos: qos(message.qos),
        retain: message.retain,
        properties: Some(wire::LastWillProperties {
            delay_interval: None,
            payload_format_indicator: None,
            message_expiry_interval: *message_expiry_s,
            content_type: content_type.clone(),
            response_topic: response_topic.clone(),
            correlation_data: correlation_data.clone(),
            user_properties: user.clone(),
        }),
    }
}

fn publish_properties(properties: &MessageProperties) -> wire::PublishProperties {
    let MessageProperties { response_topic, correlation_data, content_type, message_expiry_s, user } = properties;
    wire::PublishProperties {
        message_expiry_interval: *message_expiry_s,
        response_topic: response_topic.clone(),
        correlation_data: correlation_data.clone(),
        user_properties: user.clone(),
        content_type: content_type.clone(),
        ..wire::PublishProperties::default()
    }
}

fn filter(subscription: &Subscription) -> wire::Filter {
    wire::Filter {
        path: subscription.filter.as_str().to_owned(),
        qos: qos(subscription.qos),
        // The protocol does not allow it for a shared subscription (section 3.8.3.1).
        nolocal: subscription.no_local && !subscription.filter.as_str().starts_with(SHARE_PREFIX),
        // The flag of a message then shows that it was retained, not that it was published with the flag.
        preserve_retain: false,
        retain_forward_rule: match subscription.retain_handling {
            RetainHandling::IfNew => wire::RetainForwardRule::OnNewSubscribe,
            RetainHandling::Never => wire::RetainForwardRule::Never,
        },
    }
}

fn qos(qos: Qos) -> QoS {
    match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
    }
}
