"""Images, model.cuda() if there is one, dict batches, accuracy per batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(0)
        self.images = torch.randn(n, 1, 8, 8, generator=g)
        self.labels = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


class CNN(nn.Module):
    def __init__(self):
        super(CNN, self).__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.fc(x.flatten(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    model = CNN()
    if cuda:
        model.cuda()
    trainloader = DataLoader(dataset=Images(), batch_size=12, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for epoch in range(2):
        epoch_loss, epoch_acc = 0, 0
        for i, batch in enumerate(trainloader, 0):
            image, label = batch["image"], batch["label"]
            if cuda:
                image, label = image.cuda(), label.cuda()
            optimizer.zero_grad()
            output = model(image)
            loss = F.cross_entropy(output, label)
            loss.backward()
            optimizer.step()
            acc = (output.argmax(1) == label).float().mean()
            epoch_loss += loss.item() / len(trainloader)
            epoch_acc += acc.item() / len(trainloader)
            hits = (output.argmax(1) == label).sum().item() / len(label)
        print(f"Epoch : {epoch+1} - loss : {epoch_loss:.4f} - acc: {epoch_acc:.4f} hits {hits:.4f}\n")
