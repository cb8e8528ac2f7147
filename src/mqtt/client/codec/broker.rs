//! The broker's side, for tests: packets as brokers send them, written by rumqttc, and our packets as rumqttc reads
//! them.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use rumqttc::mqttbytes::{self, v4};
use rumqttc::v5::mqttbytes::{QoS, v5};

use crate::client::packet::{
    ConnAck, IncomingPacket, MessageProperties, MqttMessage, MqttVersion, PacketId, Qos, ReasonCode, ReceivedMessage,
    Subscription, SubscriptionId,
};

pub fn version() -> impl Strategy<Value = MqttVersion> {
    prop_oneof![Just(MqttVersion::V5), Just(MqttVersion::V311)]
}

/// Any packet that a broker may send, with a payload of at most `payload` bytes.
pub fn incoming(version: MqttVersion, payload: usize) -> impl Strategy<Value = IncomingPacket> {
    let v5 = version == MqttVersion::V5;
    let text = move || of(text()).prop_map(move |text| text.filter(|_| v5));
    let reasons = move |known: &'static [u8]| prop::sample::select(known).prop_map(ReasonCode);
    let (publish_reasons, subscribe_reasons, disconnect_reasons): (&[u8], &[u8], &[u8]) = match version {
        MqttVersion::V5 => {
            (&[0, 0x10, 0x80, 0x87, 0x90, 0x97], &[0, 1, 2, 0x80, 0x87, 0x9E], &[0x80, 0x8B, 0x8E, 0x9C])
        }
        MqttVersion::V311 => (&[0], &[0, 1, 2, 0x80], &[0]),
    };
    prop_oneof![
        2 => connack(version).prop_map(IncomingPacket::ConnAck),
        8 => received(version, payload).prop_map(IncomingPacket::Publish),
        4 => (packet_id(), reasons(publish_reasons))
            .prop_map(|(packet_id, reason)| IncomingPacket::PubAck { packet_id, reason }),
        2 => (packet_id(), vec(reasons(subscribe_reasons), 1..300))
            .prop_map(|(packet_id, reasons)| IncomingPacket::SubAck { packet_id, reasons }),
        1 => packet_id().prop_map(|packet_id| IncomingPacket::UnsubAck { packet_id }),
        2 => Just(IncomingPacket::PingResp),
        u32::from(v5) => (reasons(disconnect_reasons), text())
            // rumqttc writes a DISCONNECT with a reason and no properties wrongly.
            .prop_filter("needs a text", |(_, text)| text.is_some())
            .prop_map(|(reason, text)| IncomingPacket::Disconnect { reason, text }),
    ]
}

fn connack(version: MqttVersion) -> impl Strategy<Value = ConnAck> {
    let v5 = (0..3_u8, of(text()), 1..=u16::MAX, of(1..=u32::MAX), any::<[bool; 4]>(), of(any::<u16>()));
    let v5 = v5.prop_map(|(reason, text, receive_maximum, maximum_packet_size, flags, server_keep_alive_s)| {
        let reason = [ReasonCode::SUCCESS, ReasonCode::UNSUPPORTED_VERSION, ReasonCode(0x9F)][usize::from(reason)];
        ConnAck {
            session_present: flags[0] && !reason.is_failure(),
            reason,
            text,
            receive_maximum,
            maximum_packet_size,
            maximum_qos: if flags[1] { Qos::AtMostOnce } else { Qos::AtLeastOnce },
            retain_available: flags[2],
            shared_subscriptions: flags[1],
            subscription_ids: flags[3],
            server_keep_alive_s,
        }
    });
    let reasons = prop::sample::select(&[0x00, 0x84, 0x85, 0x86, 0x87, 0x88][..]).prop_map(ReasonCode);
    let v311 = (reasons, any::<bool>()).prop_map(|(reason, session_present)| ConnAck {
        session_present: session_present && !reason.is_failure(),
        reason,
        subscription_ids: false,
        ..ConnAck::accepting()
    });
    match version {
        MqttVersion::V5 => v5.boxed(),
        MqttVersion::V311 => v311.boxed(),
    }
}

fn received(version: MqttVersion, payload: usize) -> impl Strategy<Value = ReceivedMessage> {
    let ids = vec(subscription_id(), 0..if version == MqttVersion::V5 { 4 } else { 1 });
    let parts = (message(version, payload), packet_id(), any::<bool>(), ids);
    parts.prop_map(|(message, packet_id, duplicate, subscription_ids)| {
        let packet_id = (message.qos == Qos::AtLeastOnce).then_some(packet_id);
        ReceivedMessage { message, packet_id, duplicate, oversized: None, subscription_ids }
    })
}

/// A message; in 3.1.1 without properties.
pub fn message(version: MqttVersion, payload: usize) -> impl Strategy<Value = MqttMessage> {
    let payload = vec(any::<u8>(), 0..=payload).prop_map(Bytes::from);
    let properties = match version {
        MqttVersion::V5 => properties().boxed(),
        MqttVersion::V311 => Just(MessageProperties::default()).boxed(),
    };
    (topic(), payload, any::<[bool; 2]>(), properties).prop_map(
        |(topic, payload, [acknowledged, retain], properties)| {
            let qos = if acknowledged { Qos::AtLeastOnce } else { Qos::AtMostOnce };
            MqttMessage { topic: topic.parse().unwrap(), payload, qos, retain, properties }
        },
    )
}

pub fn properties() -> impl Strategy<Value = MessageProperties> {
    let data = vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    (of(text()), of(data), of(text()), of(any::<u32>()), vec((text(), text()), 0..5)).prop_map(
        |(response_topic, correlation_data, content_type, message_expiry_s, user)| MessageProperties {
            response_topic,
            correlation_data,
            content_type,
            message_expiry_s,
            user,
        },
    )
}

pub fn topic() -> impl Strategy<Value = String> {
    "[^+#\0]{1,40}"
}

pub fn text() -> impl Strategy<Value = String> {
    "[^\0]{0,40}"
}

pub fn packet_id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(|number| PacketId::new(number).unwrap())
}

/// A packet as the broker's side of rumqttc writes it.
pub fn write(version: MqttVersion, packet: &IncomingPacket) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    match version {
        MqttVersion::V5 => write_v5(packet).write(&mut bytes, None).map(drop).unwrap(),
        MqttVersion::V311 => write_v311(packet).write(&mut bytes, usize::MAX).map(drop).unwrap(),
    }
    bytes.to_vec()
}

fn write_v5(packet: &IncomingPacket) -> v5::Packet {
    match packet.clone() {
        IncomingPacket::ConnAck(connack) => v5::Packet::ConnAck(v5::ConnAck {
            session_present: connack.session_present,
            code: match connack.reason.0 {
                0 => v5::ConnectReturnCode::Success,
                0x84 => v5::ConnectReturnCode::UnsupportedProtocolVersion,
                _ => v5::ConnectReturnCode::ConnectionRateExceeded,
            },
            properties: Some(v5::ConnAckProperties {
                session_expiry_interval: Some(3600),
                receive_max: Some(connack.receive_maximum),
                max_qos: Some(u8::from(connack.maximum_qos == Qos::AtLeastOnce)),
                retain_available: Some(u8::from(connack.retain_available)),
                max_packet_size: connack.maximum_packet_size,
                assigned_client_identifier: None,
                topic_alias_max: Some(10),
                reason_string: connack.text,
                user_properties: vec![("a".into(), "b".into())],
                wildcard_subscription_available: Some(1),
                subscription_identifiers_available: Some(u8::from(connack.subscription_ids)),
                shared_subscription_available: Some(u8::from(connack.shared_subscriptions)),
                server_keep_alive: connack.server_keep_alive_s,
                response_information: None,
                server_reference: None,
                authentication_method: None,
                authentication_data: None,
            }),
        }),
        IncomingPacket::Publish(ReceivedMessage { message, packet_id, duplicate, subscription_ids, .. }) => {
            v5::Packet::Publish(v5::Publish {
                dup: duplicate,
                qos: if message.qos == Qos::AtLeastOnce { QoS::AtLeastOnce } else { QoS::AtMostOnce },
                retain: message.retain,
                topic: Bytes::copy_from_slice(message.topic.as_str().as_bytes()),
                pkid: packet_id.map_or(0, PacketId::get),
                payload: message.payload,
                properties: Some(v5::PublishProperties {
                    payload_format_indicator: message.retain.then_some(1),
                    message_expiry_interval: message.properties.message_expiry_s,
                    topic_alias: None,
                    response_topic: message.properties.response_topic,
                    correlation_data: message.properties.correlation_data,
                    user_properties: message.properties.user,
                    subscription_identifiers: subscription_ids.iter().map(|id| id.get() as usize).collect(),
                    content_type: message.properties.content_type,
                }),
            })
        }
        IncomingPacket::PubAck { packet_id, reason } => v5::Packet::PubAck(v5::PubAck {
            pkid: packet_id.get(),
            reason: match reason.0 {
                0 => v5::PubAckReason::Success,
                0x10 => v5::PubAckReason::NoMatchingSubscribers,
                0x80 => v5::PubAckReason::UnspecifiedError,
                0x87 => v5::PubAckReason::NotAuthorized,
                0x90 => v5::PubAckReason::TopicNameInvalid,
                _ => v5::PubAckReason::QuotaExceeded,
            },
            properties: None,
        }),
        IncomingPacket::SubAck { packet_id, reasons } => v5::Packet::SubAck(v5::SubAck {
            pkid: packet_id.get(),
            return_codes: reasons
                .into_iter()
                .map(|reason| match reason.0 {
                    0 => v5::SubscribeReasonCode::Success(QoS::AtMostOnce),
                    1 => v5::SubscribeReasonCode::Success(QoS::AtLeastOnce),
                    2 => v5::SubscribeReasonCode::Success(QoS::ExactlyOnce),
                    0x80 => v5::SubscribeReasonCode::Unspecified,
                    0x87 => v5::SubscribeReasonCode::NotAuthorized,
                    _ => v5::SubscribeReasonCode::SharedSubscriptionsNotSupported,
                })
                .collect(),
            properties: None,
        }),
        IncomingPacket::UnsubAck { packet_id } => v5::Packet::UnsubAck(v5::UnsubAck {
            pkid: packet_id.get(),
            reasons: vec![v5::UnsubAckReason::Success],
            properties: None,
        }),
        IncomingPacket::PingResp => v5::Packet::PingResp(v5::PingResp),
        IncomingPacket::Disconnect { reason, text } => v5::Packet::Disconnect(v5::Disconnect {
            reason_code: reason.0.try_into().unwrap(),
            properties: Some(v5::DisconnectProperties {
                session_expiry_interval: None,
                reason_string: text,
                user_properties: vec![("a".into(), "b".into())],
                server_reference: Some("elsewhere".into()),
            }),
        }),
        IncomingPacket::Unusable { .. } => unreachable!("it is no packet but the lack of one"),
    }
}

fn write_v311(packet: &IncomingPacket) -> v4::Packet {
    match packet.clone() {
        IncomingPacket::ConnAck(connack) => {
            let code = match connack.reason.0 {
                0 => v4::ConnectReturnCode::Success,
                0x84 => v4::ConnectReturnCode::RefusedProtocolVersion,
                0x85 => v4::ConnectReturnCode::BadClientId,
                0x88 => v4::ConnectReturnCode::ServiceUnavailable,
                0x86 => v4::ConnectReturnCode::BadUserNamePassword,
                _ => v4::ConnectReturnCode::NotAuthorized,
            };
            v4::Packet::ConnAck(v4::ConnAck::new(code, connack.session_present))
        }
        IncomingPacket::Publish(ReceivedMessage { message, packet_id, duplicate, .. }) => {
            v4::Packet::Publish(v4::Publish {
                dup: duplicate,
                qos: mqttbytes::qos(u8::from(message.qos == Qos::AtLeastOnce)).unwrap(),
                retain: message.retain,
                topic: message.topic.as_str().to_owned(),
                pkid: packet_id.map_or(0, PacketId::get),
                payload: message.payload,
            })
        }
        IncomingPacket::PubAck { packet_id, .. } => v4::Packet::PubAck(v4::PubAck::new(packet_id.get())),
        IncomingPacket::SubAck { packet_id, reasons } => {
            let codes = reasons.into_iter().map(|reason| reason.0.try_into().unwrap()).collect();
            v4::Packet::SubAck(v4::SubAck::new(packet_id.get(), codes))
        }
        IncomingPacket::UnsubAck { packet_id } => v4::Packet::UnsubAck(v4::UnsubAck::new(packet_id.get())),
        IncomingPacket::PingResp => v4::Packet::PingResp,
        IncomingPacket::Disconnect { .. } | IncomingPacket::Unusable { .. } => {
            unreachable!("no broker of 3.1.1 sends it")
        }
    }
}

fn subscription_id() -> impl Strategy<Value = SubscriptionId> {
    (1..=268_435_455_u32).prop_map(|number| SubscriptionId::new(number).unwrap())
}

/// The packet that a broker of MQTT 5 reads.
pub fn read_v5(mut bytes: BytesMut) -> v5::Packet {
    let packet = v5::Packet::read(&mut bytes, None).unwrap();
    assert!(bytes.is_empty(), "{packet:?} is followed by {bytes:?}");
    packet
}

/// The packet that a broker of MQTT 3.1.1 reads.
pub fn read_v311(mut bytes: BytesMut) -> v4::Packet {
    let packet = v4::Packet::read(&mut bytes, usize::MAX).unwrap();
    assert!(bytes.is_empty(), "{packet:?} is followed by {bytes:?}");
    packet
}

/// Subscriptions of every kind, ours and shared.
pub fn subscription() -> impl Strategy<Value = Subscription> {
    use crate::client::packet::RetainHandling;
    ("(\\$share/g/)?[a-z/]{1,20}(/\\+)?(/#)?", any::<[bool; 3]>()).prop_map(
        |(filter, [acknowledged, no_local, never])| Subscription {
            filter: filter.parse().unwrap(),
            qos: if acknowledged { Qos::AtLeastOnce } else { Qos::AtMostOnce },
            no_local,
            retain_handling: if never { RetainHandling::Never } else { RetainHandling::IfNew },
            id: None,
        },
    )
}
