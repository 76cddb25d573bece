//! The readers of saved routers and predictors: any bytes are refused or sound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use specrs::policy::payoff::{FEATURES, Mlp, PayoffRouter};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mlp) = Mlp::from_bytes(bytes) {
        assert!(mlp.predict(&[0.5; FEATURES]) >= 0.0);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(router) = PayoffRouter::load(text)
    {
        assert!(PayoffRouter::load(&router.save()).is_ok());
    }
});
