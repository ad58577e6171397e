"""Dutch invoices."""

from simfl.data.benchmarks.provider_invoices.language import Language, label_table, phrases

DUTCH = Language(
    code="nl",
    labels=label_table("""
        title: Factuur; FACTUUR; Verkoopfactuur / Nota; Rekening; Afrekening
        number: Factuurnummer; Factuurnr.; Factuur nr. / Notanummer; Kenmerk; Stuknummer
        date: Datum; Factuurdatum / Opgemaakt; Notadatum; D.d.
        due: Vervaldatum; Betalen voor; Uiterste datum / Vervalt op; Te voldoen voor; Termijn
        customer: Klant; Factuur aan; Geadresseerde / Koper; Afnemer; Aan
        item: Omschrijving; Artikel; Product / Goederen; Levering
        quantity: Aantal; Aant. / Stuks; St.
        price: Prijs; Stukprijs; Eenheidsprijs / Per stuk; Tarief
        amount: Bedrag; Totaal / Som; Waarde
        net: Subtotaal; Totaal excl.; Netto / Goederenwaarde; Voor btw
        tax: BTW; Btw-bedrag / Belasting; Omzetbelasting
        total: Totaal; Te betalen; Totaalbedrag / Eindbedrag; Te voldoen; Samen
        thanks: Bedankt voor uw bestelling; Betaling zonder korting / Wij danken u; Graag tot ziens
        phone: Telefoon; Tel. / Bel; T.
        tax_id: BTW-nr.; KvK-nummer / KvK; Reg.nr.
    """),
    months=phrases(
        "januari, februari, maart, april, mei, juni, juli, augustus, september, oktober, november, december"
    ),
    date_formats=("d-m-y4", "d-m-y4", "d month y4", "d-m-y2", "d/m/y4", "y4-m-d"),
    separators=(".,", ".,", ","),
    currencies=("EUR €", "EUR €", "EUR €"),
    tax_rates=(210, 210, 90, 0),
    first_names=phrases("""
        Anouk, Bart, Carla, Dirk, Els, Frans, Gerda, Henk, Ineke, Jeroen, Kees, Lotte, Marieke, Niels, Olaf, Pieter,
        Roos, Sanne, Tom, Ursula, Vincent, Willem, Joost, Femke
    """),
    surnames=phrases("""
        Aalders, Bakker, Beekman, Boersma, Brouwer, Claassen, Dekker, Dijkstra, Driessen, Engels, Evers, Faber,
        Geerts, Goossens, Haan, Hendriks, Hoekstra, Jacobs, Kamphuis, Koster, Kuipers, Lammers, Leeuw, Maas, Meijer,
        Mulder, Nauta, Nijland, Oosten, Peeters, Postma, Prins, Reinders, Roelofs, Sanders, Schouten, Smeets,
        Timmer, Verhoeven, Vermeer, Visser, Vos, Wagenaar, Wessels, Wouters, Ybema, Zijlstra, Zwart
    """),
    trades=phrases("""
        Gereedschap, Handel, Kantoor, Levensmiddelen, Meubelen, Elektra, Tuincentrum, Textiel, Techniek, Verpakking,
        Sport, Speelgoed, Boeken, Optiek, Bakkerij, Houthandel, Verf, Keukens, Dranken, Rijwielen
    """),
    legal_forms=("B.V.", "N.V.", "V.O.F.", "& Zn."),
    streets=phrases("""
        Dorpsstraat {}, Kerkweg {}, Stationsplein {}, Molenlaan {}, Havenkade {}, Lindelaan {}, Marktstraat {},
        Schoolstraat {}, Nieuwstraat {}, Parkweg {}, Beukenhof {}, Singel {}, Dijkweg {}, Veerstraat {}
    """),
    cities=phrases("""
        Alkmaar, Breda, Delft, Ede, Goes, Hoorn, Kampen, Lelystad, Meppel, Nijkerk, Oss, Putten, Roermond, Sneek,
        Tiel, Veere, Weert, Zeist
    """),
    nouns=phrases("""
        Aardappels, Appels, Asbakken, Batterijen, Bekers, Bezems, Bloempotten, Boeken, Boter, Borden, Borstels,
        Boren, Dekens, Dozen, Draad, Emmers, Enveloppen, Flessen, Gieters, Glazen, Gordijnen, Haken, Hamers,
        Handdoeken, Handschoenen, Helmen, Hemden, Honing, Hoeden, Jassen, Kaarsen, Kaas, Kabels, Kannen, Kapstokken,
        Kasten, Klokken, Knopen, Koffers, Koffie, Kranen, Krukken, Kussens, Ladders, Lampen, Latten, Lepels, Lijm,
        Linialen, Mappen, Meel, Messen, Mutsen, Naalden, Nietjes, Olie, Pannen, Papier, Pennen, Peren, Planken,
        Pleisters, Potloden, Pompen, Schalen, Scharen, Schoppen, Schroeven, Slangen, Sloten, Spiegels, Spijkers,
        Stiften, Stoelen, Suiker, Tafels, Tassen, Tapijten, Tegels, Tenten, Thee, Touw, Uien, Vazen, Verf, Vijlen,
        Vorken, Wielen, Zagen, Zakken, Zeep, Zout
    """),
)
