//! The address of a running server: over HTTP, or behind a broker.

use std::str::FromStr;

use ledge_mqtt::config::BrokerAddress;

/// An address that `--url` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Url {
    /// `http://HOST:PORT` or `unix:PATH`, unparsed.
    Http(String),
    /// `mqtt://HOST[:PORT]` or `mqtts://HOST[:PORT]`.
    Mqtt(BrokerAddress),
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if ["mqtt:", "mqtts:"].iter().any(|scheme| text.starts_with(scheme)) {
            return text.parse().map(Self::Mqtt).map_err(|error| format!("{error}"));
        }
        if text.starts_with("http://") || text.starts_with("unix:") {
            return Ok(Self::Http(text.to_owned()));
        }
        if text.starts_with("https://") {
            return Err(
                "https:// cannot be measured: expected http://HOST:PORT or unix:PATH, on the machine of the server"
                    .to_owned(),
            );
        }
        Err("expected http://HOST:PORT, unix:PATH, mqtt://HOST[:PORT] or mqtts://HOST[:PORT]".to_owned())
    }
}

/// The server over HTTP and the broker: at most one of each.
pub fn server_and_broker(urls: &[Url]) -> Result<(Option<&str>, Option<&BrokerAddress>), &'static str> {
    let (mut server, mut broker) = (None, None);
    for url in urls {
        let twice = match url {
            Url::Http(url) => server.replace(url.as_str()).is_some(),
            Url::Mqtt(address) => broker.replace(address).is_some(),
        };
        if twice {
            return Err("--url is given for two servers or for two brokers: give at most one of each");
        }
    }
    Ok((server, broker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_egress::HostPort;

    #[test]
    fn the_scheme_chooses_the_protocol() {
        let broker = |port, tls| Ok(Url::Mqtt(BrokerAddress { at: HostPort::new("b", port).unwrap(), tls }));
        assert_eq!("mqtt://b".parse::<Url>(), broker(1883, false));
        assert_eq!("mqtts://b:99".parse::<Url>(), broker(99, true));
        for text in ["http://127.0.0.1:8000", "unix:/run/ledge.sock"] {
            assert_eq!(text.parse::<Url>(), Ok(Url::Http(text.into())));
        }
        for wrong in ["", "127.0.0.1:8000", "https://a", "mqtt:b", "mqtt://", "mqtt://b/topic", "mqtt://user:pw@b"] {
            let error = wrong.parse::<Url>().unwrap_err();
            assert!(error.contains("expected") && !error.contains("pw@"), "{wrong}: {error}");
        }
    }

    #[test]
    fn one_server_and_one_broker_can_be_named_together() {
        let urls = ["mqtt://b", "http://a:1", "mqtt://c"].map(|text| text.parse::<Url>().unwrap());
        let (server, broker) = server_and_broker(&urls[..2]).unwrap();
        assert_eq!((server, broker.unwrap().to_string().as_str()), (Some("http://a:1"), "mqtt://b:1883"));
        assert!(server_and_broker(&urls).is_err());
        assert_eq!(server_and_broker(&[]), Ok((None, None)));
    }
}
