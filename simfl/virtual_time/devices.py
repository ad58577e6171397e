"""Bundled devices and networks: literal tables with the source of each line.

Peak FLOP/s are those of 32-bit floating point as vendors state them, or as they follow from cores, clock and width of
the vector units; those of phones are approximate, as their vendor states none. Training reaches a fraction of the peak,
the `efficiency` of a profile. Power is the vendor's limit under load. Speeds of networks are
those of common test profiles and medians of public measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from simfl.constraints import NonNegativeFloat, PositiveFloat

GIGA, TERA = 1e9, 1e12
MEGABIT = 1e6 / 8  # bytes


@dataclass(frozen=True)
class Device:
    """A kind of device."""

    flops: PositiveFloat  # peak 32-bit floating-point operations per second
    watts: NonNegativeFloat = 0.0  # power while it computes; 0: not known
    source: str = ""  # origin of the numbers


@dataclass(frozen=True)
class Network:
    """A kind of network."""

    download: PositiveFloat  # bytes per second from the server
    upload: PositiveFloat  # bytes per second to the server
    latency: NonNegativeFloat = 0.0  # seconds from the request to the first byte, in each direction
    source: str = ""  # origin of the numbers


FIREFOX = "Firefox developer tools, throttling profiles"
WEBPAGETEST = "WebPageTest, connectivity.ini.sample"

DEVICES = {
    "phone_low": Device(
        130 * GIGA, 3.0, "Adreno 506 (Snapdragon 625): Wikipedia, Adreno (nanoreview.net: 124); 3 W assumed"
    ),
    "phone_mid": Device(567 * GIGA, 4.0, "Adreno 540 (Snapdragon 835): Wikipedia, Adreno, not checked; 4 W assumed"),
    "phone_high": Device(
        899 * GIGA, 5.0, "Adreno 640 (Snapdragon 855), 384 units, 585 MHz: nanoreview.net; 5 W assumed"
    ),
    "raspberry_pi_4": Device(8 * GIGA, 7.0, "Linpack, Feiereisen 2022, feiereisen.net (double precision); 7 W assumed"),
    "jetson_nano": Device(236 * GIGA, 10.0, "128 cores x 921 MHz x 2; 10 W: cpu-gpu.alldbin.com"),
    "jetson_tx2": Device(665 * GIGA, 15.0, "NVIDIA: 1.33 TFLOP/s in half precision; 7.5 to 15 W"),
    "jetson_agx_orin": Device(5.3 * TERA, 60.0, "NVIDIA Jetson AGX Orin technical brief: 5.3 TFLOP/s; 15 to 60 W"),
    "laptop": Device(204.8 * GIGA, 15.0, "Intel Core i5-8250U: 4 cores x 1.6 GHz x 32; 15 W: notebookcheck.com"),
    "server_cpu": Device(
        2.048 * TERA, 150.0, "Intel Xeon Gold 6248: 20 cores x 1.6 GHz (AVX-512) x 64, 150 W; clock not checked"
    ),
    "t4": Device(8.1 * TERA, 70.0, "NVIDIA T4 data sheet: 8.1 TFLOP/s, 70 W"),
    "v100": Device(15.7 * TERA, 300.0, "NVIDIA V100 SXM2: 5,120 cores x 1.53 GHz x 2, 300 W; clock not checked"),
    "a100": Device(19.5 * TERA, 400.0, "NVIDIA A100 SXM data sheet: 19.5 TFLOP/s, 400 W"),
    "h100": Device(67.0 * TERA, 700.0, "NVIDIA H100 SXM data sheet: 67 TFLOP/s, 700 W"),
}

NETWORKS = {
    "3g": Network(0.75 * MEGABIT, 0.25 * MEGABIT, 0.1, f"{FIREFOX}, Regular 3G"),
    "3g_good": Network(1.5 * MEGABIT, 0.75 * MEGABIT, 0.04, f"{FIREFOX}, Good 3G"),
    "4g": Network(4 * MEGABIT, 3 * MEGABIT, 0.02, f"{FIREFOX}, Regular 4G/LTE"),
    "lte": Network(12 * MEGABIT, 12 * MEGABIT, 0.07, f"{WEBPAGETEST}, LTE"),
    "5g": Network(166.13 * MEGABIT, 21.08 * MEGABIT, 0.028, "Ookla: worldwide 5G medians of Q3 2021; mobile latency"),
    "dsl": Network(2 * MEGABIT, 1 * MEGABIT, 0.005, f"{FIREFOX}, DSL"),
    "cable": Network(5 * MEGABIT, 1 * MEGABIT, 0.028, f"{WEBPAGETEST}, Cable"),
    "fiber": Network(20 * MEGABIT, 5 * MEGABIT, 0.004, f"{WEBPAGETEST}, FIOS"),
    "wifi": Network(30 * MEGABIT, 15 * MEGABIT, 0.002, f"{FIREFOX}, Wi-Fi"),
    "ethernet": Network(1000 * MEGABIT, 1000 * MEGABIT, 0.0, "IEEE 802.3ab, 1 Gbit/s"),
}
