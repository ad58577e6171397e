"""French invoices."""

from simfl.data.benchmarks.provider_invoices.language import Language, label_table, phrases

FRENCH = Language(
    code="fr",
    labels=label_table("""
        title: Facture; FACTURE; Facture de vente / Note; Relevé; Décompte
        number: Facture n°; Numéro de facture; N° facture / Pièce n°; Référence; Réf.
        date: Date; Date de facture; Émise le / Établie le; Du; Le
        due: Échéance; Date limite; À payer avant le / Payable le; Règlement au; Exigible le
        customer: Client; Facturé à; Destinataire / Acheteur; Adressée à; Pour
        item: Désignation; Article; Description / Produit; Libellé
        quantity: Qté; Quantité / Nb; Nombre
        price: Prix unitaire; P.U. HT; Prix / Tarif; PU
        amount: Montant; Total HT / Valeur; Somme
        net: Total HT; Sous-total; Montant HT / Somme HT; Base
        tax: TVA; Montant TVA / Taxe; Taxes
        total: Total TTC; Net à payer; Montant dû / À régler; Somme due; Total général
        thanks: Merci de votre confiance; Pas d'escompte / Merci et à bientôt; Nous vous remercions
        phone: Tél.; Téléphone / Appel; Tel
        tax_id: N° TVA; SIRET / RCS; Siren
    """),
    months=phrases("janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre"),
    date_formats=("d/m/y4", "d month y4", "d/m/y2", "d-m-y4", "d.m.y4", "y4-m-d"),
    separators=(",", ".,", ","),
    currencies=("EUR €", "EUR €", "CHF CHF"),
    tax_rates=(200, 200, 55, 100, 0),
    first_names=phrases("""
        Alain, Brigitte, Camille, Denis, Élise, François, Gilles, Hélène, Isabelle, Julien, Karine, Laurent, Marie,
        Nicolas, Odile, Pascal, Renée, Sophie, Thierry, Valérie, Yves, Zoé, Benoît, Claire
    """),
    surnames=phrases("""
        Aubry, Bellanger, Berger, Besson, Blanchet, Bouvier, Carpentier, Chauvin, Colin, Cordier, Delmas, Descamps,
        Dumont, Fabre, Ferrand, Fontaine, Gaillard, Garnier, Guichard, Hamel, Humbert, Jacquet, Joly, Lacroix,
        Lambert, Leclerc, Lemoine, Mallet, Marchand, Meunier, Morel, Navarro, Noël, Olivier, Paquet, Perrin, Picard,
        Poirier, Renard, Rivière, Roussel, Sabatier, Tessier, Thibault, Vasseur, Vidal, Weber, Verdier
    """),
    trades=phrases("""
        Fournitures, Négoce, Outillage, Épicerie, Papeterie, Quincaillerie, Textiles, Électricité, Jardins,
        Mobilier, Emballages, Plomberie, Cuisines, Sports, Jouets, Librairie, Optique, Boulangerie, Menuiserie,
        Boissons
    """),
    legal_forms=("SARL", "SA", "SAS", "EURL", "et Fils"),
    streets=phrases("""
        {} rue de la Gare, {} rue du Moulin, {} avenue de la République, {} place du Marché, {} rue des Lilas,
        {} boulevard Voltaire, {} rue de l'Église, {} chemin des Vignes, {} quai du Port, {} rue Pasteur,
        {} allée des Tilleuls, {} rue Victor Hugo, {} impasse du Lac, {} rue Neuve
    """),
    cities=phrases("""
        Angers, Beaune, Castres, Dreux, Évreux, Foix, Gap, Laval, Mâcon, Niort, Orange, Pau, Rodez, Saumur, Tulle,
        Vannes, Vichy, Albi
    """),
    nouns=phrases("""
        Agrafes, Ampoules, Assiettes, Balais, Bancs, Beurre, Boîtes, Bols, Bougies, Bouteilles, Boutons, Brosses,
        Cadres, Café, Cahiers, Câbles, Carreaux, Cartons, Casques, Casseroles, Chaises, Chapeaux, Chemises, Ciseaux,
        Citrons, Clés, Clous, Colle, Cordes, Couteaux, Couvertures, Crayons, Crochets, Cuillères, Draps, Échelles,
        Enveloppes, Étagères, Farine, Fenêtres, Feutres, Fils, Fourchettes, Fromage, Gants, Gommes, Horloges, Huile,
        Lampes, Limes, Lunettes, Manteaux, Marteaux, Miel, Miroirs, Nappes, Oignons, Oreillers, Outils, Paniers,
        Papier, Peinture, Pelles, Pinceaux, Piles, Plateaux, Poêles, Poires, Pommes, Pompes, Règles, Rideaux, Roues,
        Rubans, Sacs, Savon, Scies, Seaux, Sel, Serrures, Serviettes, Sucre, Tables, Tapis, Tasses, Tentes, Thé,
        Tuyaux, Vannes, Vases, Verres, Vis
    """),
)
