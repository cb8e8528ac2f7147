//! The findings about `https://` addresses, and about access from the command line.

use ledge_listener::address::ListenAddress;
use ledge_listener::doctor;
use ledge_listener::tls::TlsSource;
use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;

use crate::config::HttpConfig;

/// Checks that `https://` can be served; `None` where it is not configured.
pub fn https(config: &HttpConfig, context: &DoctorContext<'_>) -> Option<Finding> {
    doctor::tls("https", &TlsSource::new(&config.tls, config.listen.clone(), context.state))
}

/// Checks that the command line can reach this box without options.
pub fn local_access(config: &HttpConfig) -> Option<Finding> {
    config.listen.iter().all(ListenAddress::is_tls).then(|| {
        let advice = "add \"unix:ledge.sock\" to http.listen; without it `ledge top`, `ledge features` and `ledge update` \
                      need --url, --ca-file and --key-file on this machine too";
        Finding::warn("local access", "http.listen has only https:// addresses", advice)
    })
}
